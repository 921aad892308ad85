"""Sums of the ranks' parts in the order of the ranks, so that every layout gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Elements that are summed in fp32 at a time: the scratch stays in the cache."""

_NARROW = (torch.bfloat16, torch.float16)
_PAIRWISE: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
)
OPERATIONS = tuple(_PAIRWISE)


def fold(parts: Sequence[Tensor], out: Tensor, *, op: str) -> None:
    """Combine equally long flat ``parts`` in their order into ``out``.

    bf16 and fp16 are summed in fp32 and rounded once; ``out`` may be wider than the parts and may be one of them.
    """
    wide = op == "sum" and (parts[0].dtype in _NARROW or out.dtype != parts[0].dtype)
    if len(parts) == 1:
        if out.data_ptr() != parts[0].data_ptr() or out.dtype != parts[0].dtype:
            out.copy_(parts[0])
    elif wide:
        _fold_wide(parts, out)
    else:
        _fold_same(parts, out, _PAIRWISE[op])


def _fold_same(parts: Sequence[Tensor], out: Tensor, combine: Callable[..., Tensor]) -> None:
    """Through ``out`` where it is free or first in line, so that nothing is allocated; else through a scratch."""
    if out.data_ptr() in [part.data_ptr() for part in parts[2:]]:
        total = combine(parts[0], parts[1])
        for part in parts[2:]:
            total = combine(total, part, out=total)
        out.copy_(total)
        return
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)


def _fold_wide(parts: Sequence[Tensor], out: Tensor) -> None:
    dtype = torch.promote_types(torch.float32, out.dtype)
    for start in range(0, out.numel(), BLOCK):
        blocks = [part[start : start + BLOCK] for part in parts]
        total = blocks[0].to(dtype, copy=True)
        for block in blocks[1:]:
            total.add_(block)
        out[start : start + BLOCK].copy_(total)
