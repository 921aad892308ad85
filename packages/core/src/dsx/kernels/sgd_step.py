"""One SGD update of a flat tensor."""

from __future__ import annotations

from torch import Tensor

from dsx.kernels.blocks import blocks, load_gradient, store, work_dtype


def sgd_step(
    shard: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None = None,
    *,
    step: int,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """Update weights and momentum in place; write the new weights to ``copy_out`` in its dtype.

    ``step`` counts from 1; the first momentum is the gradient itself, undampened, as in torch. ``momentum_buffer`` is
    ``None`` where ``momentum`` is 0. Weight decay is an L2 term in the gradient. Tensors are flat and equally long, of
    any floating dtype; the arithmetic is fp32 (fp64 for fp64).
    """
    dtype = work_dtype(shard)
    for block in blocks(shard):
        p = shard[block].to(dtype)
        g = load_gradient(grad[block], dtype, grad_factor)
        if weight_decay:
            g = g.add(p, alpha=weight_decay)
        if momentum_buffer is not None:
            m = momentum_buffer[block].to(dtype)
            if step == 1:
                m.copy_(g)
            else:
                m.mul_(momentum).add_(g, alpha=1.0 - dampening)
            g = g.add(m, alpha=momentum) if nesterov else m
            store(m, momentum_buffer[block])
        p.add_(g, alpha=-lr)
        store(p, shard[block])
        if copy_out is not None:
            copy_out[block].copy_(p)
