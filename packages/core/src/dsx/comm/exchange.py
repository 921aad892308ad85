"""Collectives on gloo as direct exchanges between ranks.

Measured with torch 2.13: gloo's own reduce-scatter all-reduces inside (twice the bytes), its all-gather copies through
a second buffer, its collectives of unequal size end the process, and bf16 is summed in bf16. Direct sends and receives
move exactly (N-1)/N of the bytes, straight between the tensors. Each carries a tag of call number, operation, dtype,
size and site, so ranks that have parted never receive each other's data: they wait until the deadline reports it.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

import torch
import torch.distributed as dist
from torch import Tensor

from dsx.comm.fold import fold
from dsx.comm.journal import Record
from dsx.comm.transport import Pending

SMALL = 8192
"""Bytes up to which an all-reduce sends the whole tensor to each rank: one round instead of two."""

KEPT = 4
"""Buffers that a group keeps for what arrives."""

_NO_LIMIT = timedelta(days=365)


class Scratch:
    """Buffers for what arrives: fresh memory costs more time than the sum itself, so a few are kept."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, like: Tensor) -> Tensor:
        """A tensor as long as ``like``, of its dtype, with anything in it."""
        wanted = like.numel() * like.element_size()
        fitting = [i for i, buffer in enumerate(self._free) if wanted <= buffer.numel() <= 2 * wanted]
        if fitting:
            buffer = self._free.pop(min(fitting, key=lambda i: self._free[i].numel()))
        else:
            buffer = torch.empty(wanted, dtype=torch.uint8)
        return buffer[:wanted].view(like.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        return sum(buffer.numel() for buffer in self._free)

    def give(self, tensors: list[Tensor]) -> None:
        """Take back what `take` gave; the largest are kept."""
        for tensor in tensors:
            if tensor.numel():
                self._free.append(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))
        self._free.sort(key=Tensor.numel, reverse=True)
        del self._free[KEPT:]


class Exchange:
    """Sends and receives of one phase, with what they read and write kept alive."""

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        self.sent = 0
        self._group = group
        self._tag = tag
        self._works: list[dist.Work] = []
        self._alive: list[Tensor] = []

    def receive(self, t: Tensor, *, source: int) -> None:
        """Fill ``t`` from a peer; nothing moves for an empty tensor."""
        if t.numel():
            self._keep(dist.irecv(t, group=self._group, group_src=source, tag=self._tag), t)

    def send(self, t: Tensor, *, target: int) -> None:
        """Give ``t`` to a peer."""
        if t.numel():
            self._keep(dist.isend(t, group=self._group, group_dst=target, tag=self._tag), t)
            self.sent += t.numel() * t.element_size()

    def _keep(self, work: dist.Work | None, t: Tensor) -> None:
        assert work is not None, "a rank outside the group holds no Collectives of it"
        self._works.append(work)
        self._alive.append(t)

    def wait(self, until: float | None) -> None:
        """Return when all has moved. Past ``until`` gloo closes the group's pairs, so no rank waits on in it."""
        for work in self._works:
            left = _NO_LIMIT if until is None else timedelta(seconds=max(until - monotonic(), 0.001))
            work.wait(left)
        self._works.clear()
        self._alive.clear()


class _Simple:
    """One phase, then perhaps a local sum."""

    def __init__(self, phase: Exchange) -> None:
        self._phase = phase
        self._fold: Callable[[], None] | None = None
        self._complete = False
        self.sent = phase.sent

    def then(self, local: Callable[[], None]) -> _Simple:
        self._fold = local
        return self

    def finish(self, *, timeout: float | None) -> None:
        """Wait for the exchange, then sum."""
        self._phase.wait(None if timeout is None else monotonic() + timeout)
        if self._fold is not None:
            self._fold()
            self._fold = None
        self._complete = True

    def finished(self) -> bool:
        """Known only to who has waited: gloo tells nobody else."""
        return self._complete


class _TwoPhase:
    """A large all-reduce: reduce-scatter, then all-gather in place."""

    def __init__(self, transport: GlooTransport, t: Tensor, *, op: str, tag: int) -> None:
        self._transport = transport
        self._op = op
        bounds = [t.numel() * i // transport.size for i in range(transport.size + 1)]
        self._chunks = [t[bounds[i] : bounds[i + 1]] for i in range(transport.size)]
        self._gather: Exchange | None = None
        self._tag = tag
        self._complete = False
        own = self._chunks[transport.rank]
        self._parts = transport.parts(own)
        self._scatter = transport.exchange(self._chunks, self._parts, tag=tag)
        self.sent = self._scatter.sent + own.numel() * own.element_size() * (transport.size - 1)

    def advance(self, until: float | None) -> None:
        """Complete the first phase and start the second."""
        if self._gather is None:
            self._scatter.wait(until)
            own = self._chunks[self._transport.rank]
            self._transport.fold(self._parts, own, op=self._op)
            self._parts.clear()
            everywhere = [own] * self._transport.size
            self._gather = self._transport.exchange(everywhere, self._chunks, tag=self._tag ^ 1)

    def finish(self, *, timeout: float | None) -> None:
        """Complete both phases. First phases of earlier calls go first, so that any order of waiting is safe."""
        until = None if timeout is None else monotonic() + timeout
        self._transport.advance_through(self, until)
        assert self._gather is not None
        self._gather.wait(until)
        self._complete = True

    def finished(self) -> bool:
        """Known only to who has waited: gloo tells nobody else."""
        return self._complete


class GlooTransport:
    """Direct exchanges over one gloo process group."""

    device = torch.device("cpu")

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = group.rank()
        self.size = group.size()
        self._group = group
        self._first_phases: deque[_TwoPhase] = deque()
        self._scratch = Scratch()

    def all_reduce(self, t: Tensor, *, op: str, record: Record) -> Pending:
        """Sum in the order of the ranks; every rank gets the same bits."""
        tag = _tag(record)
        if t.numel() * t.element_size() > SMALL:
            pending = _TwoPhase(self, t, op=op, tag=tag)
            self._first_phases.append(pending)
            return pending
        parts = self.parts(t)
        phase = self.exchange([t] * self.size, parts, tag=tag)
        return _Simple(phase).then(lambda: self.fold(parts, t, op=op))

    def reduce_scatter(self, output: Tensor, input: Tensor, *, op: str, record: Record) -> Pending:
        """Chunk i of each rank goes to rank i, which sums in the order of the ranks."""
        chunks = list(input.view(self.size, -1).unbind(0))
        parts = self.parts(chunks[self.rank])
        phase = self.exchange(chunks, parts, tag=_tag(record))
        return _Simple(phase).then(lambda: self.fold(parts, output, op=op))

    def all_gather(self, output: Tensor, shard: Tensor, *, record: Record) -> Pending:
        """Each shard goes straight to its place on each rank."""
        places = list(output.view(self.size, -1).unbind(0))
        if places[self.rank].data_ptr() != shard.data_ptr():
            places[self.rank].copy_(shard)
        return _Simple(self.exchange([shard] * self.size, places, tag=_tag(record)))

    def all_to_all(self, output: Tensor, input: Tensor, *, record: Record) -> Pending:
        """Each part goes straight to its place on its rank, as bytes."""
        places = list(output.view(self.size, -1).unbind(0))
        parts = list(input.view(self.size, -1).unbind(0))
        places[self.rank].copy_(parts[self.rank])
        outgoing, incoming = ([part.view(torch.uint8) for part in each] for each in (parts, places))
        return _Simple(self.exchange(outgoing, incoming, tag=_tag(record)))

    def broadcast(self, t: Tensor, *, source: int, record: Record) -> Pending:
        """The source gives the tensor to each rank."""
        phase = Exchange(self._group, _tag(record))
        if self.rank != source:
            phase.receive(t, source=source)
        else:
            for target in range(self.size):
                if target != source:
                    phase.send(t, target=target)
        return _Simple(phase)

    def kept_bytes(self) -> int:
        """The buffers for what arrives."""
        return self._scratch.nbytes

    def sever(self) -> None:
        """A receive that nobody answers closes the pairs when its time is over, and with them every wait."""
        nothing = torch.empty(1, dtype=torch.uint8)
        work = dist.irecv(nothing, group=self._group, group_src=(self.rank + 1) % self.size, tag=_SEVER)
        assert work is not None
        try:
            work.wait(timedelta(milliseconds=1))
        except RuntimeError:
            return

    def exchange(self, outgoing: list[Tensor], incoming: list[Tensor], *, tag: int) -> Exchange:
        """Start: ``outgoing[i]`` to rank i, ``incoming[i]`` from rank i; the own entries are left alone."""
        phase = Exchange(self._group, tag)
        for step in range(1, self.size):
            source = (self.rank - step) % self.size
            phase.receive(incoming[source], source=source)
        for step in range(1, self.size):
            target = (self.rank + step) % self.size
            phase.send(outgoing[target], target=target)
        return phase

    def parts(self, own: Tensor) -> list[Tensor]:
        """A place for each rank's part, by rank; this rank's is ``own``."""
        return [own if i == self.rank else self._scratch.take(own) for i in range(self.size)]

    def fold(self, parts: list[Tensor], out: Tensor, *, op: str) -> None:
        """Combine the parts into ``out``, and keep their places for the next call."""
        fold(parts, out, op=op)
        self._scratch.give([part for i, part in enumerate(parts) if i != self.rank])

    def advance_through(self, last: _TwoPhase, until: float | None) -> None:
        """Complete the first phases of all calls up to ``last``, in the order of the calls."""
        while last in self._first_phases:
            self._first_phases[0].advance(until)
            self._first_phases.popleft()


_SEVER = 1


def _tag(record: Record) -> int:
    """31 bits that two different calls do not share; even, so that the second phase has the odd one."""
    return (zlib.crc32(repr(record.key()).encode()) & 0x3FFFFFFF) * 2 + 2 & 0x7FFFFFFE
