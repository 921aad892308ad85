"""What a rank holds of a named global tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dsx.checkpoint.ranges import boxes_of_range


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """The part of one global tensor that this rank holds: flat row-major ranges, each with its tensor.

    ``pieces``: (start, tensor) pairs; the tensor's elements, in order, are [start, start + numel) of the flattened
    global tensor. A tensor may be flat or shaped, and shares memory with what it stands for: loading fills it in
    place. A rank that holds nothing gives no pieces. Each element is given by one rank, except that equal pieces on
    several ranks are written once.
    """

    name: str
    """How messages call it. In the file it goes by its place in the part's state."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[tuple[int, Tensor], ...] = ()

    def __post_init__(self) -> None:
        numel = math.prod(self.shape)
        for start, tensor in self.pieces:
            if start < 0 or start + tensor.numel() > numel:
                stop = start + tensor.numel()
                raise ValueError(f"{self.name}: range [{start}, {stop}) leaves the {numel} elements of {self.shape}")
            if tensor.dtype != self.dtype:
                raise ValueError(f"{self.name}: a piece is {tensor.dtype}, the tensor {self.dtype}")
            if not tensor.is_contiguous() and tuple(tensor.shape) != self.shape:
                raise ValueError(f"{self.name}: the piece at {start} is not contiguous")

    @classmethod
    def whole(cls, name: str, tensor: Tensor) -> Boxes:
        """The whole tensor, held by this rank; on several ranks it is written once."""
        return cls(name, tuple(tensor.shape), tensor.dtype, ((0, tensor.detach()),))


@dataclass(frozen=True, slots=True)
class Alias:
    """Stands in a part's state for a tensor that is another entry's under a second name, such as tied weights."""

    of: str
    """Path of the other entry within the same part: its keys joined by ``/``."""


Chunk = tuple[tuple[int, ...], tuple[int, ...], Tensor]
"""Offsets and sizes of one box, and a view of the elements it holds."""


def chunks_of(boxes: Boxes) -> tuple[Chunk, ...]:
    """The boxes that a rank holds, as chunks of the global tensor. One empty chunk where the tensor has no elements."""
    zeros = (0,) * len(boxes.shape)
    if math.prod(boxes.shape) == 0:
        # Somebody must name it in the file, or an empty parameter would be missing at load.
        return ((zeros, boxes.shape, torch.empty(boxes.shape, dtype=boxes.dtype)),)
    chunks: list[Chunk] = []
    for start, tensor in boxes.pieces:
        if tuple(tensor.shape) == boxes.shape:  # whole: any strides will do
            chunks.append((zeros, boxes.shape, tensor.detach()))
            continue
        flat = tensor.detach().view(-1)
        for box in boxes_of_range(boxes.shape, start=start, stop=start + flat.numel()):
            view = flat[box.start - start : box.start - start + box.numel].view(box.sizes)
            chunks.append((box.offsets, box.sizes, view))
    return tuple(chunks)
