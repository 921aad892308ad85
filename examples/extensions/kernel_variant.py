"""A kernel variant: another function for an operation of the core, which runs where its score is best.

Turned on by being there: it is chosen for every Adam; ``DSX_KERNELS="adam_step=torch"`` chooses the reference again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from dsx.plugin import Kernel, PluginSpec, Score, hookimpl

SPEC = PluginSpec(name="example-kernel", api=1, summary="adam_step over the whole tensor at once")


def adam_step(
    shard: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    bias_correction: bool = True,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """What ``dsx.kernels.adam_step`` does, in fp32 and without its blocks: few launches, large temporaries."""
    weights, gradient = shard.float(), grad.float() * grad_factor
    if decoupled:
        weights = weights * (1.0 - lr * weight_decay)
    else:
        gradient = gradient + weight_decay * weights
    exp_avg.lerp_(gradient.to(exp_avg.dtype), 1.0 - betas[0])
    exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1.0 - betas[1])
    first = 1.0 - betas[0] ** step if bias_correction else 1.0
    second = 1.0 - betas[1] ** step if bias_correction else 1.0
    denominator = exp_avg_sq.float().sqrt() / math.sqrt(second) + eps
    new = weights.addcdiv(exp_avg.float(), denominator, value=-lr / first)
    shard.copy_(new)
    if copy_out is not None:
        copy_out.copy_(new)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Kernel]:
    """The variant, a little better than the reference wherever the weights are no wider than fp32."""
    yield Kernel(
        "adam_step",
        "whole",
        load=lambda: adam_step,
        score=lambda: Score(2, "one pass over the whole tensor"),
        supports=lambda like: like.dtype.itemsize <= 4,
    )
