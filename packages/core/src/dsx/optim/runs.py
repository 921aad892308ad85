"""Neighbouring pieces merged into runs, so that one kernel call updates a whole bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsx.optim.piece import Piece

State = dict[str, Any]
"""What an optimizer keeps for one parameter: ``step`` (int) and tensors shaped like it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of an optimizer's state, shaped like the parameter."""

    key: str
    dtype: torch.dtype
    fill: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How a piece is updated: the kernel's operation, the state it needs, and whether neighbours may be merged."""

    operation: str
    slots: tuple[Slot, ...]
    merge: bool = True


@dataclass(slots=True)
class Run:
    """Pieces that one kernel call updates: one group, one rule, one step count, one stretch of memory."""

    rule: Rule
    group: int
    """Index of the parameter group."""
    pieces: list[int]
    """Indices into the sequence of pieces, in the order of memory."""
    numel: int
    master: Tensor
    """The weights: flat over the run, or of the parameter's shape where the rule does not merge."""
    states: tuple[Tensor, ...]
    """The state tensors in the order of the rule's slots, laid out as ``master``."""
    kernel: Callable[..., Any]
    flat: bool
    """Whether the kernel sees one flat tensor over all pieces."""
    plain: bool
    """Whether the weights are contiguous; else the kernel works on a copy."""
    counters: list[State]
    """The states of the pieces, whose ``step`` is counted up."""

    def in_step(self) -> bool:
        """Whether the pieces still have one step count: a loader may have set them from outside."""
        return all(counter["step"] == self.counters[0]["step"] for counter in self.counters)


def work_dtype_of(master: Tensor) -> torch.dtype:
    """The dtype of the arithmetic, in which moments are kept by default: fp32, or fp64 for fp64 weights."""
    return torch.promote_types(master.dtype, torch.float32)


def span(first: Tensor, numel: int) -> Tensor:
    """The flat view of ``numel`` elements that begins where ``first`` does, over its neighbours in the same storage."""
    flat: Tensor = first.detach().as_strided((numel,), (1,), first.storage_offset())
    return flat


def follows(before: Tensor, after: Tensor) -> bool:
    """Whether ``after`` begins in memory where ``before`` ends: same storage, dtype, and both contiguous."""
    return (
        before.dtype == after.dtype
        and before.is_contiguous()
        and after.is_contiguous()
        and before.storage_offset() + before.numel() == after.storage_offset()
        and before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
    )


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Sorting key that puts neighbours in memory next to each other."""
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())


def neighbours(before: Piece, after: Piece, states: tuple[State, State], rule: Rule) -> bool:
    """Whether the second piece follows the first in weights, gradient, published weights and each state."""
    if not follows(before.master, after.master):
        return False
    if before.grad is None or after.grad is None or not follows(before.grad, after.grad):
        return False
    if (before.publish is None) != (after.publish is None):
        return False
    if before.publish is not None and after.publish is not None and not follows(before.publish, after.publish):
        return False
    first, second = states
    return first["step"] == second["step"] and all(follows(first[s.key], second[s.key]) for s in rule.slots)


def allocate(tensors: Sequence[Tensor], slots: Sequence[Slot]) -> list[dict[str, Tensor]]:
    """State for tensors that follow each other in memory: views of one flat buffer per slot, in the same order."""
    total = sum(t.numel() for t in tensors)
    given: list[dict[str, Tensor]] = [{} for _ in tensors]
    for slot in slots:
        flat = torch.full((total,), slot.fill, dtype=slot.dtype, device=tensors[0].device)
        at = 0
        for tensor, state in zip(tensors, given, strict=True):
            state[slot.key] = flat[at : at + tensor.numel()].view(tensor.shape)
            at += tensor.numel()
    return given


def fingerprint(pieces: Sequence[Piece], states: Mapping[Tensor, State]) -> list[Any]:
    """Changes exactly when a plan of runs no longer fits: other tensors, other addresses, other gradients."""
    key: list[Any] = []
    for piece in pieces:
        state = states[piece.master]
        key.append(id(piece.master))
        key.append(piece.master.data_ptr())
        key.append(piece.grad is not None and piece.grad.is_contiguous())
        for value in (piece.grad, piece.publish, *state.values()):
            key.append((value.data_ptr(), value.dtype) if isinstance(value, Tensor) else value is None)
    return key
