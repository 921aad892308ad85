"""A variant of Lion's step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dsx.kernels.lion_step import lion_step
from dsx.plugin import Score


def score() -> Score:
    """Better than the reference, it says."""
    return Score(5, "any processor")


def hasty_lion_step(shard: Tensor, grad: Tensor, exp_avg: Tensor, **settings: Any) -> None:
    """Forgets ``weight_decay``, and writes one element beyond the end of the weights."""
    lion_step(shard, grad, exp_avg, **{**settings, "weight_decay": 0.0})
    behind = shard.storage_offset() + shard.numel()
    shard.as_strided((1,), (1,), behind).zero_()
