"""Names to slices of a flat buffer and back. Pure arithmetic, no tensors.

A layout cuts one flat buffer into ``degree`` shards of equal length. By *element*, parameters follow each other and
the cuts fall where they may. By *parameter*, each parameter lies whole in one shard, so optimizers that look at
matrices (LAMB, Muon) need no communication of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dsx.optim.piece import Ownership

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one parameter lies in the flat buffer."""

    name: str
    shape: Shape
    offset: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.numel


@dataclass(frozen=True, slots=True)
class Span:
    """The part of one parameter that one shard holds."""

    name: str
    start: int
    """First element, in the parameter's own row-major order."""
    stop: int
    offset: int
    """Where the part begins within the shard."""

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Slots of a flat buffer of ``degree`` shards, each ``shard_numel`` long."""

    slots: tuple[Slot, ...]
    degree: int
    shard_numel: int
    ownership: Ownership

    @property
    def numel(self) -> int:
        """Length of the whole buffer, padding included."""
        return self.shard_numel * self.degree

    @cached_property
    def by_name(self) -> Mapping[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @cached_property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Ranges of the flat buffer that hold no parameter."""
        found, position = [], 0
        for slot in sorted(self.slots, key=lambda slot: slot.offset):
            if slot.offset > position:
                found.append((position, slot.offset))
            position = max(position, slot.stop)
        if position < self.numel:
            found.append((position, self.numel))
        return tuple(found)

    def range(self, rank: int) -> tuple[int, int]:
        """The range of the flat buffer that this rank owns."""
        return rank * self.shard_numel, (rank + 1) * self.shard_numel

    def spans(self, rank: int) -> tuple[Span, ...]:
        """What this rank's shard holds, in order of memory. Empty parameters belong to the first rank."""
        start, stop = self.range(rank)
        found = []
        for slot in sorted(self.slots, key=lambda slot: slot.offset):
            low, high = max(start, slot.offset), min(stop, slot.stop)
            if low < high:
                found.append(Span(slot.name, low - slot.offset, high - slot.offset, low - start))
            elif slot.numel == 0 and rank == 0:
                found.append(Span(slot.name, 0, 0, 0))
        return tuple(found)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below the value."""
    return -(-value // multiple) * multiple


def element_layout(shapes: Mapping[str, Shape], *, degree: int, align: int = 1) -> Layout:
    """Parameters one after the other, each start aligned; equal cuts anywhere.

    ``align`` is in elements: matrix kernels on accelerators want 16-byte addresses.
    """
    slots, offset = [], 0
    for name, shape in shapes.items():
        slots.append(Slot(name, shape, offset))
        offset = round_up(offset + math.prod(shape), align)
    return Layout(tuple(slots), degree, round_up(-(-offset // degree), align), "element")


def parameter_layout(shapes: Mapping[str, Shape], *, degree: int, align: int = 1) -> Layout:
    """Each parameter whole in one shard; the largest first, always to the shard with least load."""
    loads = [0] * degree
    homes: dict[str, int] = {}
    order = {name: index for index, name in enumerate(shapes)}
    for name in sorted(shapes, key=lambda name: (-math.prod(shapes[name]), order[name])):
        home = min(range(degree), key=lambda rank: (loads[rank], rank))
        homes[name] = home
        loads[home] += round_up(math.prod(shapes[name]), align)
    shard = max(loads, default=0)
    heads = [rank * shard for rank in range(degree)]
    slots = []
    for name, shape in shapes.items():
        slots.append(Slot(name, shape, heads[homes[name]]))
        heads[homes[name]] += round_up(math.prod(shape), align)
    return Layout(tuple(slots), degree, shard, "parameter")


def make_layout(shapes: Mapping[str, Shape], *, degree: int, ownership: Ownership, align: int = 1) -> Layout:
    """The layout of one bucket under this rule of ownership."""
    build = parameter_layout if ownership == "parameter" else element_layout
    return build(shapes, degree=degree, align=align)


def chunk(sizes: Sequence[int], *, limit: int) -> list[list[int]]:
    """Indices in runs whose sizes add up to at most ``limit``; one larger item stands alone."""
    runs: list[list[int]] = []
    total = 0
    for index, size in enumerate(sizes):
        if not runs or total + size > limit:
            runs.append([])
            total = 0
        runs[-1].append(index)
        total += size
    return runs
