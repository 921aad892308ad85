"""What a constructor did to its parameters, as steps that can be done again on real memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Storage = int
"""A number for the memory of a tensor that was never there."""


@dataclass(frozen=True, slots=True)
class Region:
    """A tensor of the construction: a part of one storage."""

    storage: Storage
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def within(self, memory: Memory) -> Tensor:
        """The same part of real memory."""
        whole, origin = memory[self.storage]
        return torch.as_strided(whole, self.size, self.stride, whole.storage_offset() + self.offset - origin)


Memory = dict[Storage, tuple[Tensor, int]]
"""What stands for each storage now: a tensor, and the offset in the storage at which it begins."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, with a Region in place of each tensor of the construction."""

    number: int
    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    made: tuple[Region | None, ...] = ()
    """Where its results go, one for each tensor of the result; ``None`` for one that is not new."""

    def run(self, memory: Memory, device: torch.device) -> None:
        """Do it on real memory."""

        def real(value: Any) -> Any:
            if isinstance(value, Region):
                return value.within(memory)
            if isinstance(value, Tensor):
                return value.to(device)
            return device if isinstance(value, torch.device) and value.type == "meta" else value

        result = self.operation(*tree_map(real, self.arguments), **tree_map(real, dict(self.options)))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for region, tensor in zip(self.made, tensors, strict=False):
            if region is not None:
                memory[region.storage] = (tensor, region.offset)


@dataclass(eq=False, slots=True)
class Tape:
    """Steps whose storages depend on each other; at most one of these is a parameter's."""

    steps: list[Step] = field(default_factory=list)
    storages: set[Storage] = field(default_factory=set)
    recipe: Recipe | None = None
    """The parameter's, where there is one."""

    def absorb(self, other: Tape) -> None:
        """Take over another tape's steps and storages."""
        self.steps += other.steps
        self.storages |= other.storages
        if other.recipe is not None:
            self.recipe = other.recipe
            other.recipe.tape = self


@dataclass(eq=False, slots=True)
class Recipe:
    """How one parameter gets its values: those it was registered with, then steps."""

    base: Tensor
    """Memory that nobody has written costs nothing, so an empty tensor may be kept."""
    tape: Tape
    storages: tuple[Storage, ...]
    """Those that mean the parameter: its own, and that of the parameter it was copied from."""
    version: int = 0
    """Of the described parameter when recording ended: later steps would be lost."""

    def run(self, out: Tensor, *, seed: int) -> None:
        """Write the values into ``out``, contiguous and of the parameter's shape."""
        exact = out if out.dtype == self.base.dtype else torch.empty_like(out, dtype=self.base.dtype)
        exact.copy_(self.base)
        memory: Memory = dict.fromkeys(self.storages, (exact, 0))
        with torch.random.fork_rng(devices=[out.device] if out.device.type == "cuda" else []), torch.no_grad():
            torch.manual_seed(seed)
            for step in sorted(self.tape.steps, key=lambda step: step.number):
                step.run(memory, out.device)
        if exact is not out:
            out.copy_(exact)

    def copy(self, storage: Storage) -> Recipe:
        """The recipe of a copy of the parameter, which is initialised further on its own."""
        tape = Tape(list(self.tape.steps), {storage})
        tape.recipe = Recipe(self.base, tape, (*self.storages, storage))
        return tape.recipe


def storage_of(tensor: Tensor) -> Storage:
    """The number of a tensor's storage, unique while the storage is kept."""
    number: int = tensor.untyped_storage()._cdata
    return number


def region_of(tensor: Tensor) -> Region:
    """Where a tensor lies."""
    return Region(storage_of(tensor), tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))


def metas(values: Iterable[Any]) -> list[Tensor]:
    """The tensors without memory among these values."""
    return [value for value in values if isinstance(value, Tensor) and value.device.type == "meta"]
