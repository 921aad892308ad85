"""One Adagrad update of a flat tensor."""

from __future__ import annotations

from torch import Tensor

from dsx.kernels.blocks import blocks, load_gradient, store, work_dtype


def adagrad_step(
    shard: Tensor,
    grad: Tensor,
    sum_sq: Tensor,
    *,
    step: int,
    lr: float,
    lr_decay: float,
    eps: float,
    weight_decay: float,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """Update weights and the sum of squared gradients in place; write the new weights to ``copy_out`` in its dtype.

    ``step`` counts from 1. Weight decay is an L2 term in the gradient. Tensors are flat and equally long, of any
    floating dtype; the arithmetic is fp32 (fp64 for fp64). Duchi et al., JMLR 12 (2011).
    """
    dtype = work_dtype(shard)
    rate = lr / (1.0 + (step - 1) * lr_decay)
    for block in blocks(shard):
        p, s = shard[block].to(dtype), sum_sq[block].to(dtype)
        g = load_gradient(grad[block], dtype, grad_factor)
        if weight_decay:
            g = g.add(p, alpha=weight_decay)
        s.addcmul_(g, g, value=1.0)
        p.addcdiv_(g, s.sqrt().add_(eps), value=-rate)
        store(p, shard[block])
        store(s, sum_sq[block])
        if copy_out is not None:
            copy_out[block].copy_(p)
