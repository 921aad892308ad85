"""Clipping by the global norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_, so that both give the same weights."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """The gradient norm before and after clipping."""

    before: float
    after: float


def clip_factor(norm: float, limit: float) -> float:
    """By what gradients are multiplied so that their norm is at most ``limit``; 1 where there is no limit (0)."""
    if limit <= 0 or not math.isfinite(norm):
        return 1.0
    return min(1.0, limit / (norm + EPSILON))
