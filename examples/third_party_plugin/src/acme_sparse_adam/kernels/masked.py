"""The reference: computes every element, and keeps what has a gradient. It defines what is correct."""

from __future__ import annotations

import math

import torch
from dsx.kernels.blocks import blocks, load_gradient, work_dtype
from torch import Tensor


def masked_step(
    shard: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """Update weights and both moments in place where ``grad`` is not zero; write all weights to ``copy_out``.

    With g = grad_factor · grad and t = ``step``, counted from 1 whatever was touched before:
    m ← m + (1 − β₁)(g − m), v ← v + (1 − β₂)(g² − v), w ← w − lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + eps).
    Tensors are flat and equally long, of any floating dtype; the arithmetic is fp32 (fp64 for fp64).
    """
    dtype = work_dtype(shard)
    rate = step_size(step, lr=lr, betas=betas)
    for block in blocks(shard):
        touched = grad[block] != 0
        g = load_gradient(grad[block], dtype, grad_factor)
        p, m, v = (tensor[block].to(dtype) for tensor in (shard, exp_avg, exp_avg_sq))
        new_m = m.lerp(g, 1.0 - betas[0])
        new_v = v.lerp(g.square(), 1.0 - betas[1])
        new_p = p.addcdiv(new_m, new_v.sqrt().add_(eps), value=-rate)
        exp_avg[block].copy_(torch.where(touched, new_m, m))
        exp_avg_sq[block].copy_(torch.where(touched, new_v, v))
        shard[block].copy_(torch.where(touched, new_p, p))
        if copy_out is not None:
            copy_out[block].copy_(torch.where(touched, new_p, p))


def step_size(step: int, *, lr: float, betas: tuple[float, float]) -> float:
    """The learning rate with the bias corrections of both moments in it."""
    return lr * math.sqrt(1.0 - betas[1] ** step) / (1.0 - betas[0] ** step)
