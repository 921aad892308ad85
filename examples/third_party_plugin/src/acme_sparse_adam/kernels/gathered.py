"""A variant for few gradients: gathers the elements that have one, updates them, and puts them back."""

from __future__ import annotations

from typing import Any

from dsx.kernels.blocks import blocks, load_gradient, work_dtype
from torch import Tensor

from acme_sparse_adam.kernels.masked import masked_step, step_size

CROWDED = 0.125
"""Share of a block above which all of it is computed: gathering so much would take longer."""


def gathered_step(
    shard: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
    **settings: Any,
) -> None:
    """What the reference does, in a time that follows the number of elements with a gradient."""
    for block in blocks(shard):
        parts = [tensor[block] for tensor in (shard, grad, exp_avg, exp_avg_sq)]
        out = None if copy_out is None else copy_out[block]
        touched = int(parts[1].count_nonzero())
        if touched > CROWDED * parts[1].numel():
            masked_step(*parts, grad_factor=grad_factor, copy_out=out, **settings)
            continue
        if touched:
            _update(*parts, grad_factor=grad_factor, **settings)
        if out is not None:
            out.copy_(parts[0])


def _update(
    shard: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    grad_factor: float,
) -> None:
    dtype = work_dtype(shard)
    where = grad.nonzero().view(-1)
    g = load_gradient(grad[where], dtype, grad_factor)
    p, m, v = (tensor[where].to(dtype) for tensor in (shard, exp_avg, exp_avg_sq))
    m.lerp_(g, 1.0 - betas[0])
    v.lerp_(g.square(), 1.0 - betas[1])
    p.addcdiv_(m, v.sqrt().add_(eps), value=-step_size(step, lr=lr, betas=betas))
    for tensor, new in ((shard, p), (exp_avg, m), (exp_avg_sq, v)):
        tensor.index_copy_(0, where, new.to(tensor.dtype))
