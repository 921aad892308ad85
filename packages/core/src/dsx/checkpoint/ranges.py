"""A flat range of a row-major box is a few smaller boxes. Pure arithmetic, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a global tensor that is also one run of its row-major order."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    """Where the box begins in the flattened global tensor."""

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)


def boxes_of_range(shape: Sequence[int], *, start: int, stop: int) -> tuple[Box, ...]:
    """The boxes that tile elements [start, stop) of the flattened tensor of this shape, in that order.

    At most ``2 * len(shape) - 1`` boxes (one for a scalar); none for an empty range. Each box is contiguous in the
    flattened tensor, so its elements are a plain view of the range.
    """
    numel = math.prod(shape)
    if not 0 <= start <= stop <= numel:
        raise ValueError(f"range [{start}, {stop}) does not lie in the {numel} elements of shape {tuple(shape)}")
    return tuple(_tile(tuple(shape), (), 0, start, stop))


def _tile(shape: tuple[int, ...], lead: tuple[int, ...], base: int, start: int, stop: int) -> Iterator[Box]:
    """Boxes of [start, stop) within the sub-tensor at index ``lead``, which begins at flat position ``base``."""
    if start == stop:
        return
    ones = (1,) * len(lead)
    if not shape:
        yield Box(lead, ones, base)
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the whole rows are [first, last)
    if first > last:  # the range lies within one row
        yield from _tile(shape[1:], (*lead, last), base + last * row, start - last * row, stop - last * row)
        return
    if start < first * row:
        head = first - 1
        yield from _tile(shape[1:], (*lead, head), base + head * row, start - head * row, row)
    if first < last:
        rest = tuple(0 for _ in shape[1:])
        yield Box((*lead, first, *rest), (*ones, last - first, *shape[1:]), base + first * row)
    if last * row < stop:
        yield from _tile(shape[1:], (*lead, last), base + last * row, 0, stop - last * row)
