"""Tensors as they cross the boundary: an address and a dtype code, once they are known to be plain memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from dsx.errors import KernelError

CODES: Mapping[torch.dtype, int] = MappingProxyType({torch.float32: 1, torch.bfloat16: 2, torch.float16: 3})
"""The codes of ``csrc/cpu/dtype.h``."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
NOTHING = (0, 0)
"""What crosses where an optional tensor is absent."""


def address(
    name: str, tensor: torch.Tensor, *, n: int | None = None, dtypes: tuple[torch.dtype, ...] = FLOATS
) -> tuple[int, int]:
    """Address and dtype code of a contiguous CPU tensor in one of ``dtypes``, of ``n`` elements where that is given.

    Raises KernelError where it is anything else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise KernelError(f"{name} is a {type(tensor).__name__}; wanted a tensor")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise KernelError(f"{name} is a {type(tensor).__name__}; wanted plain memory: pass the local tensor within it")
    if tensor.device.type != "cpu":
        raise KernelError(f"{name} is on {tensor.device}; wanted cpu: move it, or leave the choice to the registry")
    if tensor.dtype not in dtypes:
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise KernelError(f"{name} has {str(tensor.dtype).removeprefix('torch.')}; wanted one of {wanted}: convert it")
    if tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.is_neg():
        raise KernelError(f"{name} is not contiguous; wanted elements in a row: pass .contiguous() or the flat view")
    if n is not None and tensor.numel() != n:
        raise KernelError(f"{name} has {tensor.numel()} elements; wanted {n}, as the shard has: pass the same range")
    return tensor.data_ptr(), CODES[tensor.dtype]


def written(*tensors: torch.Tensor | None) -> None:
    """Tells autograd that these changed, as an in-place operation of torch would: a stale saved value is an error."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
