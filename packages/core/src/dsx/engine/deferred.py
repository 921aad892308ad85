"""Models as descriptions: what a constructor does to its parameters is written down, and done when they are placed.

Within :func:`deferred`, parameters live on the meta device and remember, step by step, how they are initialised:
``nn.init``, ``Module.apply``, ``with torch.no_grad(): weight[0].zero_()`` all count. :func:`fill` does the steps on real
memory, with random numbers that follow from the parameter's name, so any layout draws the same weights. Buffers are made
at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsx.errors import EngineError


@dataclass(frozen=True, slots=True)
class Step:
    """One operation in place on a region of the parameter."""

    operation: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(slots=True)
class Recipe:
    """How one parameter gets its values: those it was registered with, then steps."""

    base: Tensor
    """Memory that nobody has written costs nothing, so an empty tensor may be kept."""
    steps: list[Step] = field(default_factory=list)

    def run(self, out: Tensor, *, seed: int) -> None:
        """Write the values into ``out``, contiguous and of the parameter's shape."""
        out.copy_(self.base)
        devices = [out.device] if out.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            for step in self.steps:
                region = torch.as_strided(out, step.size, step.stride, out.storage_offset() + step.offset)
                step.operation(region, *step.arguments, **step.options)


class Described(nn.Parameter):
    """A parameter without memory, and its recipe."""

    recipe: Recipe


def describe(param: nn.Parameter) -> Described:
    """The description of a parameter that was just made."""
    described: Described = torch.Tensor._make_subclass(
        Described, torch.empty_like(param, device="meta", memory_format=torch.contiguous_format), param.requires_grad
    )
    described.recipe = Recipe(param.detach())
    return described


class _Recorder(TorchDispatchMode):
    """Writes in-place operations on described parameters into their recipes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, Described] = {}

    def add(self, described: Described) -> None:
        self.known[described.untyped_storage()._cdata] = described

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            described = self.known.get(args[0].untyped_storage()._cdata)
            written = func._schema.arguments[0].alias_info
            if described is not None and written is not None and written.is_write:
                self._record(described, func, args, options)
        return func(*args, **options)

    def _record(self, described: Described, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        for leaf in tree_leaves((args[1:], options)):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                raise EngineError(
                    f"a parameter of shape {tuple(described.shape)} is set by {func} from values that do not exist yet "
                    "under dsx.construct. Build this model outside of it and pass it to dsx.initialize"
                )
        region = args[0]
        described.recipe.steps.append(
            Step(func, tuple(region.size()), tuple(region.stride()), region.storage_offset(), args[1:], dict(options))
        )


@contextmanager
def deferred() -> Iterator[None]:
    """Parameters registered within are described, not allocated."""
    recorder = _Recorder()

    def registered(module: nn.Module, name: str, param: nn.Parameter | None) -> nn.Parameter | None:
        if param is None or isinstance(param, Described) or param.is_meta or not param.dtype.is_floating_point:
            return None
        described = describe(param)
        recorder.add(described)
        return described

    hook: Any = registered  # torch takes a parameter in return; its annotation says None
    handle = register_module_parameter_registration_hook(hook)
    try:
        with recorder:
            yield
    finally:
        handle.remove()


def fill(param: nn.Parameter, out: Tensor, *, seed: int) -> None:
    """Write a parameter's values, real or described, into ``out``."""
    recipe = getattr(param, "recipe", None)
    if isinstance(recipe, Recipe):
        recipe.run(out, seed=seed)
    else:
        out.copy_(param.data)
