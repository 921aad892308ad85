"""Puts a model on its device; parameters that were only described become ready to be filled, bucket by bucket."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from dsx.deferred.recorder import Described
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
        for name, param in list(module._parameters.items()):
            if isinstance(param, Described):
                if id(param) not in replaced:
                    replaced[id(param)] = _ready(f"{path}.{name}" if path else name, param, device)
                setattr(module, name, replaced[id(param)])  # modules may keep what they are given elsewhere too
            elif param is not None and param.is_meta:
                bare.append(name)
        if bare:
            _reset(module, path, bare, device=device, seed=seed)
    for param in model.parameters():
        if param.device != device:
            param.data = param.data.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                raise EngineError(
                    f"buffer {name!r} of a {type(module).__name__} is on the meta device: it was computed from "
                    "parameters that are only described, or nothing fills it. Build this model outside of dsx.construct"
                )
            if buffer is not None:
                dtype = buffers if buffers is not None and buffer.is_floating_point() else buffer.dtype
                module._buffers[name] = buffer.to(device, dtype)


def _ready(name: str, param: Described, device: torch.device) -> nn.Parameter:
    """The same parameter on a real device, still without memory of its own."""
    if param.recorder is None and param._version != param.recipe.version:
        raise EngineError(
            f"parameter {name!r} was initialised after its dsx.construct block had ended, where nothing is written "
            "down: do it within the block, or after dsx.initialize inside engine.gathered(writer=0)"
        )
    place = absent(tuple(param.shape), dtype=param.dtype, device=device)
    ready = nn.Parameter(place, requires_grad=param.requires_grad)
    ready.recipe = param.recipe  # type: ignore[attr-defined]
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
        module._parameters[name] = nn.Parameter(
            torch.empty_like(param, device=device), requires_grad=param.requires_grad
        )
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_meta:
            module._buffers[name] = torch.empty_like(buffer, device=device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed_of(path, seed))
        reset()
