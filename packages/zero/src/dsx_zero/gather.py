"""Stage 3: parameters rest as shards and are whole around their use.

Three things make a bucket whole: a module that owns some of it is about to run, its parameter is read through any
module's attribute, or backward asks for a weight that autograd saved. Saved weights are kept as handles, so they cost
no memory and are gathered again when a backward node wants them. A bucket is held while a module that owns some of it
runs, and *lent* where its parameter has left that module: read by another, given as a result, or computed with again
in backward. Timing decides speed and memory, never results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dsx.comm.collectives import Work
from dsx.flat.bucket import Bucket
from dsx_zero.config import ZeroConfig
from dsx_zero.hooks import ModuleHooks, in_backward
from dsx_zero.trace import Trace


@dataclass(eq=False, slots=True)
class Resident:
    """One sharded bucket, and whether it is whole now."""

    index: int
    bucket: Bucket
    numel: int
    trainable: frozenset[str]
    whole: Tensor | None = None
    work: Work | None = None
    """The gather under way."""
    holds: int = 0
    """Uses that are open: modules running, contexts entered."""
    lent: bool = False
    """Somebody may still read its parameters: until forward ends; in backward, until their gradients have come."""
    arrived: set[str] = field(default_factory=set)
    """Gradients of this backward that have come."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A saved weight: where it lies in its bucket."""

    resident: Resident
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Gatherer:
    """Makes sharded buckets whole and lets them go; a :class:`dsx.flat.driver.Residency`."""

    def __init__(
        self, model: nn.Module, buckets: Sequence[Bucket], *, units: dict[str, str], config: ZeroConfig
    ) -> None:
        ordered = sorted(buckets, key=lambda bucket: -buckets.index(bucket))
        self.residents = [
            Resident(index, b, b.layout.numel, frozenset(b.params) if b.trainable else frozenset())
            for index, b in enumerate(ordered)
        ]
        self.by_bucket = {resident.bucket: resident for resident in self.residents}
        self.by_storage: dict[int, Resident] = {}
        self.budget = 0 if config.allgather_sequential else config.prefetch_bucket_size
        self.max_live = config.max_live_parameters
        self.max_reuse = config.max_reuse_distance
        self.warn_astray = config.log_trace_cache_warnings
        sizes = [resident.numel for resident in self.residents]
        self.traces = {True: Trace(sizes), False: Trace(sizes)}
        self.trace = self.traces[True]
        self.live = 0
        self.latest: Resident | None = None
        """The bucket that was used last."""
        self.running = 0
        """Forwards of the engine that are open."""
        self.backward_ran = False
        by_name = {name: resident for resident in self.residents for name in resident.bucket.params}
        self.hooks = ModuleHooks(model, by_name, units, self)

    # Residency -----------------------------------------------------------------------------------------------------

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around each forward of the engine: saved weights become handles."""
        training = torch.is_grad_enabled()
        if self.backward_ran or not training:
            self._new_pass(training)
        self.running += 1
        try:
            if training:
                with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                    yield
            else:
                yield
        finally:
            self.running -= 1
            if not training:
                self.settle()
            elif not self.running:
                self._take_back()

    def arrived(self, bucket: Bucket, name: str) -> None:
        """A gradient came; when all of a bucket have, backward is done with it."""
        self.backward_ran = True
        resident = self.by_bucket.get(bucket)
        if resident is None:
            return
        resident.arrived.add(name)
        if resident.arrived == resident.trainable:
            resident.arrived.clear()
            resident.lent = False
            self.release(resident)

    def settle(self) -> None:
        """Release all that is not held, and begin a new pass at the next forward."""
        for resident in self.residents:
            resident.arrived.clear()
            resident.lent = False
            self.release(resident)
        self.backward_ran = True

    @contextmanager
    def hold(self, buckets: Sequence[Bucket]) -> Iterator[None]:
        """These buckets are whole within the context; what is computed with them there can go backward later."""
        held = [self.by_bucket[bucket] for bucket in buckets if bucket in self.by_bucket]
        for resident in held:
            resident.holds += 1
            self.start(resident)
        for resident in held:
            self._finish(resident)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            for resident in held:
                resident.holds -= 1
                self.release(resident)

    def close(self, *, whole: bool) -> None:
        """Take the hooks off; leave every parameter whole if asked for."""
        self.hooks.remove()
        if not whole:
            return
        for resident in self.residents:
            self.start(resident)
        for resident in self.residents:
            self._finish(resident)
        self.by_storage.clear()

    # Gathering -----------------------------------------------------------------------------------------------------

    def use(self, resident: Resident) -> None:
        """The parameters of this bucket are needed now."""
        before, self.latest = self.latest, resident
        backward = not self.running and not torch.is_grad_enabled()
        if backward and before is not None and before is not resident and not before.trainable:
            self.used(before)  # no gradient will come to say that backward is done with a frozen bucket
        self.trace.note(resident.index)
        self.start(resident)
        self._finish(resident)
        self._prefetch()

    def lend(self, resident: Resident) -> None:
        """A parameter of this bucket leaves its module."""
        if not resident.lent:
            self.use(resident)
            resident.lent = True

    def start(self, resident: Resident) -> None:
        """Begin to gather, unless it is whole or on its way."""
        if resident.whole is not None:
            return
        self._make_room(resident.numel)
        bucket = resident.bucket
        resident.whole = torch.empty(bucket.layout.numel, dtype=bucket.precision.parameter, device=bucket.device)
        again = " again for backward" if in_backward() else ""
        resident.work = bucket.shard_group.all_gather(
            resident.whole, bucket.shard, site=f"gather {next(iter(bucket.params))}{again}", wait=False
        )
        self.live += resident.numel

    def _finish(self, resident: Resident) -> None:
        if resident.work is None:
            return
        resident.work.wait()
        resident.work = None
        assert resident.whole is not None
        self.by_storage[resident.whole.untyped_storage().data_ptr()] = resident
        resident.bucket.show(resident.whole)

    def _prefetch(self) -> None:
        """Begin what the recorded order says comes next, within the budgets."""
        ahead = 0
        for index in self.trace.upcoming():
            resident = self.residents[index]
            ahead += resident.numel
            if ahead > self.budget or (resident.whole is None and self.live + resident.numel > self.max_live):
                return
            self.start(resident)

    def _make_room(self, numel: int) -> None:
        """Let go of buckets that nobody holds, those needed last first, until this many elements fit."""
        if self.live + numel <= self.max_live:
            return
        idle = [r for r in self.residents if r.whole is not None and r.work is None and not r.holds and not r.lent]
        far = float("inf")
        for resident in sorted(idle, key=lambda r: -(far if (d := self.trace.distance(r.index)) is None else d)):
            if self.live + numel <= self.max_live:
                return
            self.release(resident)

    def release(self, resident: Resident) -> None:
        """Let the whole buffer go, unless somebody holds it."""
        if resident.whole is None or resident.holds or resident.lent:
            return
        self._finish(resident)
        self.by_storage.pop(resident.whole.untyped_storage().data_ptr(), None)
        resident.whole = None
        resident.bucket.drop()
        self.live -= resident.numel

    def used(self, resident: Resident) -> None:
        """A module is done with this bucket: keep it only if it is known to be used again soon."""
        self.trace.leave()
        if not self.running and torch.is_grad_enabled():
            resident.lent = True  # backward computes it again, and its own graph keeps no handles
            return
        distance = self.trace.distance(resident.index)
        if distance is None or distance >= self.max_reuse:
            self.release(resident)

    def _take_back(self) -> None:
        """Forward has ended: nobody reads on in what was lent."""
        for resident in self.residents:
            if resident.lent:
                resident.lent = False
                self.used(resident)

    def _new_pass(self, training: bool) -> None:
        self.trace = self.traces[training]
        if self.trace.astray and self.warn_astray:
            logging.getLogger("dsx").warning(
                "the order in which parameters are used has changed: prefetching learns it anew, and rests meanwhile"
            )
        self.trace.restart()
        self.backward_ran = False

    # Saved weights -------------------------------------------------------------------------------------------------

    def _pack(self, tensor: Tensor) -> Any:
        resident = self.by_storage.get(tensor.untyped_storage().data_ptr())
        if resident is None or resident.whole is None or tensor.dtype != resident.whole.dtype:
            return tensor
        return Handle(resident, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))

    def _unpack(self, saved: Any) -> Tensor:
        if not isinstance(saved, Handle):
            tensor: Tensor = saved
            return tensor
        self.backward_ran = True
        self.use(saved.resident)
        assert saved.resident.whole is not None
        return torch.as_strided(saved.resident.whole, saved.size, saved.stride, saved.offset)
