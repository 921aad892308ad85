"""How collectives reach the other ranks: one small object by backend, chosen once when a group is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from dsx.comm.journal import Record


class Pending(Protocol):
    """A collective under way."""

    sent: int
    """Bytes that this rank puts on the wire for it."""

    def finish(self, *, timeout: float | None) -> None:
        """Return when the result is there. Raises RuntimeError past ``timeout`` seconds or on a lost peer."""

    def finished(self) -> bool:
        """Whether the result is there already; ``False`` where that cannot be told without waiting."""


class Transport(Protocol):
    """Moves flat contiguous tensors. Each call starts at once; the result is there after ``Pending.finish``."""

    device: torch.device
    """Where small tensors of its own must be."""

    def all_reduce(self, t: Tensor, *, op: str, record: Record) -> Pending: ...
    def reduce_scatter(self, output: Tensor, input: Tensor, *, op: str, record: Record) -> Pending: ...
    def all_gather(self, output: Tensor, shard: Tensor, *, record: Record) -> Pending: ...
    def all_to_all(self, output: Tensor, input: Tensor, *, record: Record) -> Pending: ...
    def broadcast(self, t: Tensor, *, source: int, record: Record) -> Pending: ...
    def sever(self) -> None:
        """Make every wait in this group end with an error, on this rank and its peers."""

    def kept_bytes(self) -> int:
        """Bytes kept between calls."""


class Done:
    """Nothing is left to wait for."""

    sent = 0

    def finish(self, *, timeout: float | None) -> None:
        """Nothing to wait for."""

    def finished(self) -> bool:
        """Always."""
        return True


DONE = Done()


class LocalTransport:
    """A group of one: the local thing, without torch.distributed."""

    device = torch.device("cpu")

    def all_reduce(self, t: Tensor, *, op: str, record: Record) -> Pending:
        """The tensor is its own sum."""
        return DONE

    def reduce_scatter(self, output: Tensor, input: Tensor, *, op: str, record: Record) -> Pending:
        """The whole is the shard."""
        _copy(output, input)
        return DONE

    def all_gather(self, output: Tensor, shard: Tensor, *, record: Record) -> Pending:
        """The shard is the whole."""
        _copy(output, shard)
        return DONE

    def all_to_all(self, output: Tensor, input: Tensor, *, record: Record) -> Pending:
        """The one part stays here."""
        _copy(output, input)
        return DONE

    def broadcast(self, t: Tensor, *, source: int, record: Record) -> Pending:
        """The source has it."""
        return DONE

    def sever(self) -> None:
        """Nobody waits."""

    def kept_bytes(self) -> int:
        """Nothing is kept."""
        return 0


def _copy(output: Tensor, input: Tensor) -> None:
    if output.data_ptr() != input.data_ptr() or output.dtype != input.dtype:
        output.copy_(input)


# Renamed in torch 2.13, which warns of the old names.
_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class NativeTransport:
    """The backend's own collectives: NCCL and its kin, whose kernels move what they should."""

    def __init__(self, group: dist.ProcessGroup, *, device: torch.device) -> None:
        self.device = device
        self._group = group
        self._size = group.size()

    def kept_bytes(self) -> int:
        """What the backend keeps is its own."""
        return 0

    def all_reduce(self, t: Tensor, *, op: str, record: Record) -> Pending:
        """The backend's all-reduce, as a ring moves it."""
        work = dist.all_reduce(t, op=_REDUCE_OPS[op], group=self._group, async_op=True)
        return _NativeWork(work, sent=2 * self._share(t))

    def reduce_scatter(self, output: Tensor, input: Tensor, *, op: str, record: Record) -> Pending:
        """The backend's reduce-scatter; an output of another dtype is filled when the work is finished."""
        target = output if output.dtype == input.dtype else torch.empty_like(output, dtype=input.dtype)
        work = _REDUCE_SCATTER(target, input, op=_REDUCE_OPS[op], group=self._group, async_op=True)
        after = None if target is output else (lambda: output.copy_(target))
        return _NativeWork(work, sent=self._share(input), after=after)

    def all_gather(self, output: Tensor, shard: Tensor, *, record: Record) -> Pending:
        """The backend's all-gather into one tensor."""
        work = _GATHER(output, shard, group=self._group, async_op=True)
        return _NativeWork(work, sent=self._share(output))

    def all_to_all(self, output: Tensor, input: Tensor, *, record: Record) -> Pending:
        """The backend's exchange of equal parts, as bytes: not every backend knows every dtype."""
        parts = (output.view(torch.uint8), input.view(torch.uint8))
        work = dist.all_to_all_single(*parts, group=self._group, async_op=True)
        return _NativeWork(work, sent=self._share(input))

    def broadcast(self, t: Tensor, *, source: int, record: Record) -> Pending:
        """The backend's broadcast."""
        work = dist.broadcast(t, group_src=source, group=self._group, async_op=True)
        return _NativeWork(work, sent=self._share(t))

    def sever(self) -> None:
        """End the kernels that wait for a peer."""
        self._group.abort()

    def _share(self, whole: Tensor) -> int:
        return whole.numel() * whole.element_size() * (self._size - 1) // self._size


class _NativeWork:
    def __init__(self, work: dist.Work, *, sent: int, after: Callable[[], Any] | None = None) -> None:
        self.sent = sent
        self._work = work
        self._after = after

    def finish(self, *, timeout: float | None) -> None:
        """Order the current stream behind the result; the host goes on."""
        self._work.wait()
        if self._after is not None:
            self._after()
            self._after = None

    def finished(self) -> bool:
        """Whether the device is done with it."""
        return self._work.is_completed()
