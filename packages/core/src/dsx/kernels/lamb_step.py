"""One LAMB update of a whole parameter."""

from __future__ import annotations

import math

from torch import Tensor

from dsx.kernels.blocks import blocks, load_gradient, store, work_dtype


def lamb_step(
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
    bias_correction: bool,
    max_coeff: float,
    min_coeff: float,
    eps_inside_sqrt: bool,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """Update weights and both moments in place; write the new weights to ``copy_out`` in its dtype.

    The tensors are those of one whole parameter, contiguous and of one shape: the step is scaled by the ratio of the
    norms of weights and update, held within [min_coeff, max_coeff] (arXiv:1904.00962). As in DeepSpeed, bias
    correction scales the step, not the update whose norm is taken. The update is that of the moments as they are
    stored. ``step`` counts from 1.
    """
    beta1, beta2 = betas
    dtype = work_dtype(shard)
    shard, grad, exp_avg, exp_avg_sq = (t.view(-1) for t in (shard, grad, exp_avg, exp_avg_sq))
    weights_sq = update_sq = 0.0
    for block in blocks(shard):
        p, m, v = shard[block].to(dtype), exp_avg[block].to(dtype), exp_avg_sq[block].to(dtype)
        g = load_gradient(grad[block], dtype, grad_factor)
        m.lerp_(g, 1.0 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        store(m, exp_avg[block])
        store(v, exp_avg_sq[block])
        m, v = exp_avg[block].to(dtype), exp_avg_sq[block].to(dtype)
        update = _update(p, m, v, eps, weight_decay, eps_inside_sqrt)
        weights_sq += float(p.square().sum())
        update_sq += float(update.square().sum())
    ratio = 1.0
    if weights_sq > 0 and update_sq > 0:
        ratio = min(max(math.sqrt(weights_sq / update_sq), min_coeff), max_coeff)
    rate = lr * ratio
    if bias_correction:
        rate *= math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)
    for block in blocks(shard):  # the update is made twice rather than kept, to need no tensor of the parameter's size
        p, m, v = shard[block].to(dtype), exp_avg[block].to(dtype), exp_avg_sq[block].to(dtype)
        p.sub_(_update(p, m, v, eps, weight_decay, eps_inside_sqrt), alpha=rate)
        store(p, shard[block])
        if copy_out is not None:
            copy_out.view(-1)[block].copy_(p)


def _update(p: Tensor, m: Tensor, v: Tensor, eps: float, weight_decay: float, eps_inside_sqrt: bool) -> Tensor:
    denominator = v.add(eps).sqrt_() if eps_inside_sqrt else v.sqrt().add_(eps)
    return m.div(denominator).add_(p, alpha=weight_decay)
