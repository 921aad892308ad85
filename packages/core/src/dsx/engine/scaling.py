"""Lets a plain ``loss.backward()`` carry the loss scale: it enters where the model's outputs meet the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class _ScaleGradient(torch.autograd.Function):
    """Identity in forward; multiplies the gradient in backward by what ``factor()`` gives then."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: Callable[[], float]) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        factor = ctx.factor()
        return (gradients[0] if factor == 1.0 else gradients[0] * factor), None


def scale_gradients(outputs: Any, factor: Callable[[], float]) -> Any:
    """The same tensors, in any nesting, whose gradients will be multiplied on their way back."""

    apply: Callable[..., Tensor] = _ScaleGradient.apply

    def wrap(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_floating_point():
            return apply(leaf, factor)
        return leaf

    return tree_map(wrap, outputs)


def cast_inputs(inputs: Any, dtype: torch.dtype | None, device: torch.device) -> Any:
    """All tensors on this device, in any nesting; floating-point ones in this dtype, if there is one."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device, dtype if dtype is not None and leaf.is_floating_point() else leaf.dtype)

    return tree_map(cast, inputs)
