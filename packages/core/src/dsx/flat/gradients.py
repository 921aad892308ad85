"""The gradients of one bucket between two updates: what is pending, what is in flight, what this rank owns."""

from __future__ import annotations

import torch
from torch import Tensor

from dsx.comm.coded import CodedWork, all_reduce_coded, reduce_scatter_coded
from dsx.comm.collectives import Work
from dsx.flat.bucket import Bucket, view_of
from dsx.flat.layout import Span


class Buffers:
    """Whole gradient buffers that reductions have done with, kept for the next ones: fresh memory costs more."""

    def __init__(self, *, keep: int = 2) -> None:
        self.keep = keep
        self.free: list[Tensor] = []

    def take(self, numel: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer of this length with anything in it."""
        for index, buffer in enumerate(self.free):
            if buffer.numel() == numel and buffer.dtype == dtype and buffer.device == device:
                return self.free.pop(index)
        return torch.empty(numel, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        return sum(buffer.nbytes for buffer in self.free)

    def give(self, buffer: Tensor) -> None:
        """Take a buffer back; the oldest go when there are too many."""
        self.free.append(buffer)
        del self.free[: -self.keep]


class Gradients:
    """Sums contributions, reduces them, and holds this rank's shard of the result.

    ``pending`` holds what this rank has added since the bucket was last reduced, whole, in the accumulate dtype;
    ``owned`` is this rank's shard of the reduced sum. With gradients that rest whole, ``owned`` is its own range
    of ``pending``; after a reduction, ``reopen`` leaves each element with one holder, so a second reduction adds up.
    With gradients that rest as shards, ``owned`` is memory of its own and each reduction adds to it.
    """

    def __init__(self, bucket: Bucket, *, buffers: Buffers) -> None:
        self.bucket = bucket
        self.buffers = buffers
        self.separate = bucket.policy.reduce_each
        self.pending: Tensor | None = None
        self.owned: Tensor | None = None
        self.fresh: set[str] = set()
        """Names that have contributed since the last reduction."""
        self.touched: set[str] = set()
        """Names that have contributed since the last update, on any rank once reduced."""
        self.launches = 0
        self._shard: Tensor | None = None
        self._in_flight: tuple[Work | CodedWork, Tensor, Tensor] | None = None
        self._late: list[tuple[str, Tensor]] = []
        """What came while a reduction of two halves was under way: added when that is finished."""

    @property
    def _has_second_half(self) -> bool:
        """Whether ranks send more when they finish a reduction: sums of encoded parts, or shards to their replicas."""
        bucket = self.bucket
        return bucket.codec is not None or (bucket.shard_group.size > 1 and bucket.replica_group.size > 1)

    @property
    def complete(self) -> bool:
        """Whether every parameter has contributed since the last reduction."""
        return len(self.fresh) == len(self.bucket.params)

    def add(self, name: str, gradient: Tensor) -> None:
        """Take one contribution. The first writes, later ones add."""
        if not self.separate:
            if self._in_flight is not None and self._has_second_half:
                # To finish it here would begin that, on this rank alone, before what others start now.
                self._late.append((name, gradient))
                self.fresh.add(name)
                self.touched.add(name)
                return
            self.finish()
            if self.launches and not self.fresh:
                self.reopen()
        view = view_of(self._take_pending(), self.bucket.layout.by_name[name])
        scale = 1.0 / self.bucket.policy.predivide
        if name in self.fresh or (self.launches and not self.separate):
            view.add_(gradient, alpha=scale)
        elif scale == 1.0:
            view.copy_(gradient)
        else:
            torch.mul(gradient.to(view.dtype), scale, out=view)
        self.fresh.add(name)
        self.touched.add(name)

    def _take_pending(self) -> Tensor:
        if self.pending is None:
            bucket = self.bucket
            self.pending = self.buffers.take(
                bucket.layout.numel, dtype=bucket.precision.accumulate, device=bucket.device
            )
        return self.pending

    def reopen(self) -> None:
        """After a reduction: keep each reduced element on one rank only, so that summing again stays right."""
        assert self.pending is not None
        if self.bucket.replica_group.rank != 0:
            self.pending.zero_()
            return
        start, stop = self.bucket.layout.range(self.bucket.rank)
        self.pending[:start].zero_()
        self.pending[stop:].zero_()

    def launch(self) -> None:
        """Start the reduction of what is pending; every rank of the groups must do the same in the same order."""
        self.finish()
        bucket = self.bucket
        pending = self._take_pending()
        if self.separate or not self.launches:
            self._clear_stale(pending)
        elif not self.fresh:
            self.reopen()
        wire = pending if bucket.precision.reduce == pending.dtype else pending.to(bucket.precision.reduce)
        if bucket.shard_group.size > 1:
            result = self._place(wire)
            work = _reduce_scatter(bucket, result, wire)
        else:
            result = wire
            work = _all_reduce(bucket, wire, site="reduce gradients", wait=False)
        self._in_flight = (work, wire, result)
        self.launches += 1
        self.fresh.clear()
        if self.separate:
            if wire is not pending:
                self.buffers.give(pending)
            self.pending = None

    def _place(self, wire: Tensor) -> Tensor:
        """Where a reduced shard is written: straight to where it rests, if nothing is there yet."""
        if wire is self.pending and not self.separate:
            return self.bucket.own(wire)
        if self.separate and self.owned is None:
            if self._shard is None:
                self._shard = self._empty_shard()
            return self._shard
        return self._empty_shard()

    def _empty_shard(self) -> Tensor:
        bucket = self.bucket
        return torch.empty(bucket.layout.shard_numel, dtype=bucket.precision.accumulate, device=bucket.device)

    def finish(self) -> None:
        """Wait for the reduction in flight and add its result to what this rank owns."""
        if self._in_flight is None:
            return
        bucket = self.bucket
        work, wire, result = self._in_flight
        self._in_flight = None
        work.wait()
        if bucket.shard_group.size > 1 and bucket.replica_group.size > 1:
            _all_reduce(bucket, result, site="reduce gradients over replicas", wait=True)
        if not self.separate:
            assert self.pending is not None
            self.owned = bucket.own(self.pending)
            if self.owned.data_ptr() != result.data_ptr():
                self.owned.copy_(result)
            self._add_late()
            return
        if self.owned is None:
            self.owned = result.to(bucket.precision.accumulate)
        else:
            self.owned.add_(result)
        if result.data_ptr() != wire.data_ptr() and wire.dtype == bucket.precision.accumulate:
            self.buffers.give(wire)

    def _add_late(self) -> None:
        late, self._late = self._late, []
        if late:
            self.fresh.clear()
        for name, gradient in late:
            self.add(name, gradient)

    def _clear_stale(self, pending: Tensor) -> None:
        """Zero what nobody wrote since the buffer was taken: silent parameters and padding."""
        for start, stop in self.bucket.layout.gaps:
            pending[start:stop].zero_()
        if not self.complete:
            for slot in self.bucket.layout.slots:
                if slot.name not in self.fresh:
                    view_of(pending, slot).zero_()

    def clear(self) -> None:
        """Forget all contributions; the memory is kept for the next update."""
        self.finish()
        self.fresh.clear()
        self.touched.clear()
        self.launches = 0
        self.owned = None
        if self.separate and self.pending is not None:
            self.buffers.give(self.pending)
            self.pending = None

    def tensors(self) -> list[Tensor]:
        """The memory that gradients rest in now."""
        return [tensor for tensor in (self.pending, self.owned, self._shard) if tensor is not None]

    def of(self, span: Span) -> Tensor | None:
        """The reduced gradient of one span, flat; ``None`` where no rank touched the parameter."""
        if self.owned is None or span.name not in self.touched:
            return None
        return self.owned[span.offset : span.offset + span.numel]


def _reduce_scatter(bucket: Bucket, output: Tensor, input: Tensor) -> Work | CodedWork:
    group, site = bucket.shard_group, "reduce gradients"
    if bucket.codec is None:
        return group.reduce_scatter(output, input, site=site, wait=False)
    return reduce_scatter_coded(group, output, input, codec=bucket.codec, site=site, wait=False)


def _all_reduce(bucket: Bucket, t: Tensor, *, site: str, wait: bool) -> Work | CodedWork:
    if bucket.codec is None:
        return bucket.replica_group.all_reduce(t, site=site, wait=wait)
    return all_reduce_coded(bucket.replica_group, t, codec=bucket.codec, site=site, wait=wait)
