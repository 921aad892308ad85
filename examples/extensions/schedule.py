"""A learning-rate schedule: a pure function of the update index, as a frozen dataclass of its parameters.

Turned on by ``"scheduler": {"type": "Trapezoid", "params": {"total": 1000, "warmup": 50, "decay": 200}}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsx.errors import ConfigError
from dsx.optim.schedules import Schedule
from dsx.plugin import SCHEDULE, Component, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-schedule", api=1, summary="warm up, stay, decay in a line")


@dataclass(frozen=True, kw_only=True)
class Trapezoid(Schedule):
    """Grows to the group's rate in ``warmup`` updates, stays, and falls to 0 in the last ``decay`` of ``total``."""

    total: int
    warmup: int = 0
    decay: int = 0

    def check(self) -> None:
        """Refuse what makes no trapezoid."""
        super().check()
        if min(self.warmup, self.decay) < 0 or self.warmup + self.decay > self.total:
            raise ConfigError(
                f"scheduler.params: found warmup {self.warmup} and decay {self.decay} of {self.total} updates, wanted "
                "two numbers from 0 whose sum is at most total"
            )

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        """The rate of one update; the first has index 0."""
        rising = (index + 1) / self.warmup if index < self.warmup else 1.0
        left = max(0, self.total - index)
        falling = left / self.decay if left < self.decay else float(left > 0)
        return base_lr * min(rising, falling)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The schedule, under its name."""
    yield Component(SCHEDULE, "Trapezoid", load=lambda: Trapezoid, summary="warm up, stay, decay in a line")
