"""Puts a model on its device; parameters that were only described become ready to be filled, bucket by bucket."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from dsx.engine.deferred import Described
from dsx.errors import EngineError


def seed_of(name: str, seed: int) -> int:
    """The random seed of one parameter: from its name, so that any layout draws the same weights."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


def absent(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Stands where a parameter's memory is not: its shape, one element, not a number. Writing to it is an error."""
    return torch.full((), math.nan, dtype=dtype, device=device).expand(shape)


def materialise(model: nn.Module, *, device: torch.device, seed: int, buffers: torch.dtype | None) -> None:
    """Move parameters and buffers to the device, one by one.

    Described parameters get their recipe's place; others on the meta device are made by ``reset_parameters``.
    """
    replaced: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        bare = []
        for name, param in module._parameters.items():
            if param is None or not param.is_meta:
                continue
            if isinstance(param, Described):
                module._parameters[name] = replaced.setdefault(id(param), _ready(param, device))
            else:
                bare.append(name)
        if bare:
            _reset(module, path, bare, device=device, seed=seed)
    for param in model.parameters():
        if param.device != device:
            param.data = param.data.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                dtype = buffers if buffers is not None and buffer.is_floating_point() else buffer.dtype
                module._buffers[name] = buffer.to(device, dtype)


def _ready(param: Described, device: torch.device) -> nn.Parameter:
    """The same parameter on a real device, still without memory of its own."""
    place = absent(tuple(param.shape), dtype=param.dtype, device=device)
    ready: Described = torch.Tensor._make_subclass(Described, place, param.requires_grad)
    ready.recipe = param.recipe
    return ready


def _reset(module: nn.Module, path: str, bare: list[str], *, device: torch.device, seed: int) -> None:
    reset: Any = getattr(module, "reset_parameters", None)
    if reset is None:
        raise EngineError(
            f"parameters {bare} of module {path!r} ({type(module).__name__}) are on the meta device and the module has "
            "no reset_parameters(): build the model under dsx.construct(config), or give the module that method"
        )
    for name in bare:
        param = module._parameters[name]
        assert param is not None
        module._parameters[name] = nn.Parameter(torch.empty_like(param, device=device), requires_grad=param.requires_grad)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed_of(path, seed))
        reset()
