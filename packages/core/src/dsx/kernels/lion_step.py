"""One Lion update of a flat tensor."""

from __future__ import annotations

from torch import Tensor

from dsx.kernels.blocks import blocks, load_gradient, store, work_dtype


def lion_step(
    shard: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """Update weights and momentum in place; write the new weights to ``copy_out`` in its dtype.

    The step is the sign of an interpolation of momentum and gradient; weight decay is decoupled (arXiv:2302.06675).
    Tensors are flat and equally long, of any floating dtype; the arithmetic is fp32 (fp64 for fp64).
    """
    beta1, beta2 = betas
    dtype = work_dtype(shard)
    for block in blocks(shard):
        p, m = shard[block].to(dtype), exp_avg[block].to(dtype)
        g = load_gradient(grad[block], dtype, grad_factor)
        p.mul_(1.0 - lr * weight_decay)
        p.add_(m.lerp(g, 1.0 - beta1).sign_(), alpha=-lr)
        m.lerp_(g, 1.0 - beta2)
        store(p, shard[block])
        store(m, exp_avg[block])
        if copy_out is not None:
            copy_out[block].copy_(p)
