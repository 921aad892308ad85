"""What the registry asks before it loads a variant: how good it is here, for which tensors, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from dsx.plugin import Form, Score

_SETTINGS: Mapping[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8}


def reference_score() -> Score:
    """The lowest: it runs anywhere."""
    return Score(1, "the torch reference, for any device and dtype")


def gathered_score() -> Score:
    """Above the reference, below what a compiled variant would say."""
    return Score(5, "computes only the elements that have a gradient")


def on_host(tensor: torch.Tensor) -> bool:
    """On a device it would wait for each block: which elements have a gradient is known only there."""
    return tensor.device.type == "cpu"


def form() -> Form:
    """How `dsx.testing.check_variants` calls the operation: the first update, and a later one of a scaled gradient."""
    return Form(
        states=("exp_avg", "exp_avg_sq"),
        settings=({**_SETTINGS, "step": 1}, {**_SETTINGS, "step": 10, "grad_factor": 0.25}),
    )
