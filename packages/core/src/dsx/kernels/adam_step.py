"""One Adam or AdamW update of a flat tensor."""

from __future__ import annotations

import math

from torch import Tensor

from dsx.kernels.blocks import blocks, load_gradient, store, work_dtype


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
    """Update weights and both moments in place; write the new weights to ``copy_out`` in its dtype.

    All tensors are flat and equally long; each may be fp32, bf16 or fp16 (or all fp64), the arithmetic is fp32 (fp64).
    ``step`` counts from 1. ``decoupled``: AdamW's weight decay (arXiv:1711.05101), else an L2 term in the gradient
    (arXiv:1412.6980). ``grad`` is only read.
    """
    beta1, beta2 = betas
    dtype = work_dtype(shard)
    correction1 = 1.0 - beta1**step if bias_correction else 1.0
    correction2 = math.sqrt(1.0 - beta2**step) if bias_correction else 1.0
    for block in blocks(shard):
        p, m, v = shard[block].to(dtype), exp_avg[block].to(dtype), exp_avg_sq[block].to(dtype)
        g = load_gradient(grad[block], dtype, grad_factor)
        if decoupled:
            p.mul_(1.0 - lr * weight_decay)
        elif weight_decay:
            g = g.add(p, alpha=weight_decay)
        m.lerp_(g, 1.0 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        denominator = v.sqrt().div_(correction2).add_(eps)
        p.addcdiv_(m, denominator, value=-lr / correction1)
        store(p, shard[block])
        store(m, exp_avg[block])
        store(v, exp_avg_sq[block])
        if copy_out is not None:
            copy_out[block].copy_(p)
