"""One Muon update of a whole matrix, or of a stack of matrices."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from dsx.kernels.blocks import load_gradient, work_dtype
from dsx.kernels.orthogonalise import orthogonalise


def muon_step(
    shard: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    ns_steps: int,
    ns_method: Literal["gram", "standard"],
    grad_factor: float = 1.0,
    copy_out: Tensor | None = None,
) -> None:
    """Update weights and momentum in place; write the new weights to ``copy_out`` in its dtype.

    The step is the orthogonalised momentum, times ``sqrt(max(1, rows / columns))``; weight decay is decoupled. Tensors
    have the parameter's shape: [rows, columns]; [n, rows, columns] is n matrices; with more dims (convolutions) all
    but the first are one. Orthogonalises in fp32 on a CPU, in bf16 elsewhere. https://kellerjordan.github.io/posts/muon
    """
    dtype = work_dtype(shard)
    p, m = shard.to(dtype), momentum_buffer.to(dtype)
    g = load_gradient(grad, dtype, grad_factor)
    m.lerp_(g, 1.0 - momentum)
    direction = g.lerp(m, momentum) if nesterov else m
    matrices = direction if direction.dim() <= 3 else direction.flatten(1)
    rows, columns = matrices.shape[-2:]
    precise = dtype if shard.device.type == "cpu" else torch.bfloat16
    step = orthogonalise(matrices.to(precise), steps=ns_steps, method=ns_method).to(dtype)
    p.mul_(1.0 - lr * weight_decay)
    p.add_(step.reshape(p.shape), alpha=-lr * math.sqrt(max(1.0, rows / columns)))
    if p is not shard:
        shard.copy_(p)
    if m is not momentum_buffer:
        momentum_buffer.copy_(m)
    if copy_out is not None:
        copy_out.copy_(p)
