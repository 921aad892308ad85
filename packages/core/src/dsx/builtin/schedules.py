"""Learning-rate schedules by name: ours, and torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import SCHEDULE
from dsx.plugin.types import Component

_OURS = {
    "WarmupLR": "grows to a rate, then stays",
    "WarmupDecayLR": "grows to a rate, then falls in a line",
    "WarmupCosineLR": "grows to a rate, then falls as a half cosine",
    "OneCycle": "up, down, then decay; the momentum the other way",
    "LRRangeTest": "grows without bound, to find the largest rate that trains",
}

_TORCH = (
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "StepLR",
)


def components() -> Iterator[Component[Any]]:
    """Ours by their names; torch's with and without the prefix ``torch.``."""
    for name, summary in _OURS.items():
        yield Component(SCHEDULE, name, load=f"dsx.optim.schedules:{name}", summary=summary)
    for name in _TORCH:
        yield Component(
            SCHEDULE,
            name,
            load=f"torch.optim.lr_scheduler:{name}",
            aliases=(f"torch.{name}",),
            summary=f"torch.optim.lr_scheduler.{name}",
        )
