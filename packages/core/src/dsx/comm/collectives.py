"""The one wrapper around collective communication. Engines, drivers and plugins use nothing below it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsx.comm.exchange import GlooTransport
from dsx.comm.fold import OPERATIONS
from dsx.comm.journal import Account, Journal, Record
from dsx.comm.transport import DONE, LocalTransport, NativeTransport, Pending, Transport
from dsx.comm.watchdog import Watch
from dsx.errors import CommError


class Work:
    """A collective under way. ``wait`` may be called by whoever needs the result, more than once."""

    def __init__(self, collectives: Collectives, pending: Pending, record: Record) -> None:
        self._collectives = collectives
        self._pending: Pending | None = pending
        self._record = record

    def wait(self) -> None:
        """Return when the result is in its tensor. Raises CommError past the group's deadline or on a lost rank."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._collectives._complete(pending, self._record)  # the two are one object to the outside

    def done(self) -> bool:
        """Whether the result is known to be there."""
        return self._pending is None or self._pending.finished()


Listener = Callable[["Collectives", Record, int, float], None]
"""Called with a group, a call that has ended, the bytes this rank sent for it and the seconds it waited."""


class Collectives:
    """Collective calls within one group of ranks; every rank of the group makes the same calls in the same order.

    Tensors are contiguous. ``site`` says who calls and why, such as ``"blocks.3 gather"``: equal on all ranks, it
    appears in the hang report. With ``wait=False`` a call returns at once; its tensors belong to it until
    ``Work.wait``. Any number of calls may be under way. A group of one does the local thing.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        name: str = "world",
        ranks: Sequence[int] | None = None,
        deadline: float = 1800.0,
        watch: Watch | None = None,
        transport: Transport | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.name = name
        self.process_group = group
        self.ranks: tuple[int, ...] = tuple(ranks) if ranks is not None else _global_ranks(group)
        """World ranks of the members, by group rank."""
        self.size = len(self.ranks)
        self.rank = group.rank() if group is not None else 0
        """This process within the group."""
        self.deadline = deadline
        self.account = Account()
        self.listener: Listener | None = None
        """Told of each collective as it ends on this rank."""
        self.journal = Journal()
        self.transport = transport if transport is not None else _transport(group, device)
        self._owns_watch = watch is None
        self._watch = watch if watch is not None else Watch.of(group, deadline=deadline)
        self._watch.add(self)

    def all_reduce(self, t: Tensor, *, op: str = "sum", site: str, wait: bool = True) -> Work:
        """Combine ``t`` over the ranks, in place: ``sum``, ``max`` or ``min``. bf16 and fp16 are summed in fp32."""
        self._check(site, op, t)
        record = self.journal.add(f"all_reduce {op}", _name(t), t.numel(), site)
        return self._begin(record, wait, lambda: self.transport.all_reduce(t.view(-1), op=op, record=record))

    def reduce_scatter(self, output: Tensor, input: Tensor, *, op: str = "sum", site: str, wait: bool = True) -> Work:
        """Combine ``input`` over the ranks; ``output`` gets this rank's of ``size`` equal parts.

        ``output`` may be wider than ``input`` (the sum is rounded once), and may be this rank's range of ``input``.
        """
        self._check(site, op, output, input)
        self._check_whole(site, whole=input, shard=output)
        record = self.journal.add(f"reduce_scatter {op}", _name(input), input.numel(), site)
        flat = (output.view(-1), input.view(-1))
        return self._begin(record, wait, lambda: self.transport.reduce_scatter(*flat, op=op, record=record))

    def all_gather(self, output: Tensor, shard: Tensor, *, site: str, wait: bool = True) -> Work:
        """Make whole: ``output`` gets the shards in the order of the ranks. ``shard`` may be its own range of it."""
        self._check(site, "sum", output, shard)
        self._check_whole(site, whole=output, shard=shard)
        if output.dtype != shard.dtype:
            raise CommError(f"all_gather at '{site}': shard is {shard.dtype}, output {output.dtype}; make them equal")
        record = self.journal.add("all_gather", _name(output), output.numel(), site)
        flat = (output.view(-1), shard.view(-1))
        return self._begin(record, wait, lambda: self.transport.all_gather(*flat, record=record))

    def all_to_all(self, output: Tensor, input: Tensor, *, site: str, wait: bool = True) -> Work:
        """Exchange equal parts: part i of ``input`` goes to rank i, part i of ``output`` comes from rank i.

        Any dtype, moved bit by bit. The two tensors share no memory.
        """
        self._check(site, "sum", output, input)
        self._check_exchange(site, output=output, input=input)
        record = self.journal.add("all_to_all", _name(input), input.numel(), site)
        flat = (output.view(-1), input.view(-1))
        return self._begin(record, wait, lambda: self.transport.all_to_all(*flat, record=record))

    def broadcast(self, t: Tensor, *, source: int = 0, site: str, wait: bool = True) -> Work:
        """Give ``t`` of the group rank ``source`` to every rank, in place."""
        self._check(site, "sum", t)
        if not 0 <= source < self.size:
            raise CommError(f"broadcast at '{site}': source {source} is no group rank; wanted 0 to {self.size - 1}")
        record = self.journal.add(f"broadcast from {source}", _name(t), t.numel(), site)
        return self._begin(record, wait, lambda: self.transport.broadcast(t.view(-1), source=source, record=record))

    def exchange_objects(self, value: Any, *, site: str) -> list[Any]:
        """Every rank's value, by group rank. Values are pickled: for small agreements, not for tensors."""
        if self.size == 1:
            self.journal.add("exchange", "object", 1, site)
            return [value]
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        device = self.transport.device
        sizes = torch.zeros(self.size, dtype=torch.int64, device=device)
        sizes[self.rank] = data.numel()
        self.all_gather(sizes, sizes[self.rank : self.rank + 1], site=f"{site} (sizes)")
        longest = int(sizes.max())
        whole = torch.zeros(self.size, longest, dtype=torch.uint8, device=device)
        whole[self.rank, : data.numel()] = data
        self.all_gather(whole, whole[self.rank], site=site)
        lengths = sizes.tolist()
        return [pickle.loads(whole[i, : lengths[i]].cpu().numpy().tobytes()) for i in range(self.size)]

    def barrier(self, *, site: str) -> None:
        """Return when every rank has come here."""
        token = torch.zeros(1, device=self.transport.device)
        self.all_reduce(token, site=site)
        if token.device.type != "cpu":
            token.item()

    def mark(self) -> None:
        """A new update begins: the hang report counts calls by site from here."""
        self.journal.mark()

    def verify(self, *, site: str) -> None:
        """Raise CommError on every rank where the ranks' calls so far differ. For backends that cannot tell."""
        if self.size > 1 and len(set(self.exchange_objects(self.journal.fingerprint, site=site))) > 1:
            self._watch.alarm(self, f"the calls of group '{self.name}' differ between its ranks")

    def close(self) -> None:
        """End the watch of a group that was made alone. The groups of a mesh are closed with it."""
        if self._owns_watch:
            self._watch.close()

    def _begin(self, record: Record, wait: bool, start: Callable[[], Pending]) -> Work:
        pending = self._watch.start(self, record, start)
        self.account.add(record.op.partition(" ")[0], calls=1, sent=pending.sent)
        work = Work(self, pending, record)
        if pending is DONE:
            record.state = "done"
            if self.listener is not None:
                self.listener(self, record, 0, 0.0)
        if wait:
            work.wait()
        return work

    def _complete(self, pending: Pending, record: Record) -> None:
        if pending is DONE:
            return
        start = perf_counter()
        record.state = "waited"
        self._watch.wait(self, pending, record)
        record.state = "done"
        seconds = perf_counter() - start
        self.account.add(record.op.partition(" ")[0], seconds=seconds)
        if self.listener is not None:
            self.listener(self, record, pending.sent, seconds)

    def _check(self, site: str, op: str, *tensors: Tensor) -> None:
        self._watch.check()
        if op not in OPERATIONS:
            raise CommError(f"'{site}': operation {op!r} is not one of {', '.join(OPERATIONS)}")
        for t in tensors:
            if not t.is_contiguous():
                raise CommError(f"'{site}': found a tensor with strides {t.stride()}; pass a contiguous one")

    def _check_whole(self, site: str, *, whole: Tensor, shard: Tensor) -> None:
        if whole.numel() != shard.numel() * self.size:
            raise CommError(
                f"'{site}': found a whole of {whole.numel()} elements and a shard of {shard.numel()} in a group of "
                f"{self.size} ranks; wanted {self.size} equal shards: pad the whole"
            )

    def _check_exchange(self, site: str, *, output: Tensor, input: Tensor) -> None:
        if output.dtype != input.dtype or output.numel() != input.numel():
            raise CommError(
                f"all_to_all at '{site}': found an input of {input.numel()} x {_name(input)} and an output of "
                f"{output.numel()} x {_name(output)}; make them equal"
            )
        if input.numel() % self.size:
            raise CommError(
                f"all_to_all at '{site}': found {input.numel()} elements in a group of {self.size} ranks; wanted "
                f"{self.size} equal parts: pad the tensors"
            )
        if _overlap(output, input):
            raise CommError(f"all_to_all at '{site}': found input and output in the same memory; pass another output")


def _name(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _overlap(one: Tensor, other: Tensor) -> bool:
    if one.device != other.device or not one.numel():
        return False
    return one.data_ptr() < other.data_ptr() + other.nbytes and other.data_ptr() < one.data_ptr() + one.nbytes


def _global_ranks(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group)) if group is not None else (0,)


def _transport(group: dist.ProcessGroup | None, device: torch.device | None) -> Transport:
    if group is None or group.size() == 1:
        return LocalTransport()
    if dist.get_backend(group) == "gloo":
        return GlooTransport(group)
    return NativeTransport(group, device=device if device is not None else torch.device("cpu"))
