"""From gradients that arrive one by one to shards of the reduced sum, the same on every rank.

Early reduction during backward is an optimisation; ``complete`` is the definition. Buckets are launched in one cyclic
order. Who launches the first of a cycle announces it, and every rank then launches the whole of it: early where its
buckets fill, else in ``complete``. So a rank that waits in backward for a reduction never waits for one that waits for
its agreement. ``complete`` last agrees on which buckets still hold contributions, and reduces those: a module used
twice, a parameter without a gradient and ranks that ran different code all end in the same reductions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dsx.comm.collectives import Collectives, Work
from dsx.flat.bucket import Bucket
from dsx.flat.gradients import Buffers, Gradients

if TYPE_CHECKING:
    from collections.abc import Callable

IN_FLIGHT = 2
"""Reductions that may run beside backward: more would keep more memory."""
AGREE = "agree on reductions"


class Reducer:
    """Collects gradients of trainable buckets and reduces them."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        control: Collectives,
        on_arrival: Callable[[Bucket, str], None] | None = None,
    ) -> None:
        self.buckets = tuple(buckets)
        self.control = control
        self.on_arrival = on_arrival
        self.early = False
        """Whether full buckets are launched as they fill."""
        self.launched = 0
        self.settled = True
        """Whether everything that arrived has been reduced."""
        self.handles: list[RemovableHandle] = []
        self.names = [name for bucket in self.buckets for name in bucket.params]
        self.in_flight: deque[Gradients] = deque()
        """Reductions under way, oldest first."""
        self.announced: list[Work] = []
        """Rounds of agreement that this rank has joined without reading them."""
        self.buffers_kept = Buffers()
        for bucket in self.buckets:
            bucket.gradients = Gradients(bucket, buffers=self.buffers_kept)
            for name, param in bucket.params.items():
                self.handles.append(param.register_post_accumulate_grad_hook(self._hook(bucket, name)))

    def _hook(self, bucket: Bucket, name: str) -> Callable[[nn.Parameter], None]:
        def arrived(param: nn.Parameter) -> None:
            gradient = param.grad
            if gradient is None:
                return
            param.grad = None
            self.settled = False
            gradients_of(bucket).add(name, gradient.to_dense() if gradient.is_sparse else gradient)
            if self.early:
                self._advance()
            if self.on_arrival is not None:
                self.on_arrival(bucket, name)

        return arrived

    def _advance(self) -> None:
        """Launch the next buckets in order while they are full."""
        while True:
            gradients = gradients_of(self.buckets[self.launched % len(self.buckets)])
            repeat = not gradients.separate and self.launched >= len(self.buckets)
            if repeat or not gradients.complete:
                return
            if self.launched % len(self.buckets) == 0 and self.control.size > 1:
                word = self._word(begins=True)
                self.announced.append(self.control.all_reduce(word, op="max", site=AGREE, wait=False))
            self._launch(gradients)
            self.launched += 1

    def _launch(self, gradients: Gradients) -> None:
        gradients.launch()
        self.in_flight.append(gradients)
        if len(self.in_flight) > IN_FLIGHT:
            self.in_flight.popleft().finish()

    def complete(self) -> None:
        """Reduce all that is pending anywhere; idempotent, and the same collectives on every rank."""
        if not self.buckets:
            return
        if self.control.size > 1:
            self._agree()
        elif not self.settled:
            for bucket in self.buckets:
                if gradients_of(bucket).fresh:
                    gradients_of(bucket).launch()
        for bucket in self.buckets:
            gradients_of(bucket).finish()
        self.in_flight.clear()
        self.settled = True

    def _agree(self) -> None:
        mine = [gradients_of(bucket) for bucket in self.buckets]
        begins, unsettled = 1, 0
        rest: list[int] = []
        while begins:
            while self.launched % len(mine):
                self._launch(mine[self.launched % len(mine)])
                self.launched += 1
            while self.announced:
                self.announced.pop().wait()
            word = self._word(begins=False)
            self.control.all_reduce(word, op="max", site=AGREE)
            begins, unsettled, *rest = word.tolist()
            if begins:  # elsewhere a backward goes on: join its cycle
                self._launch(mine[0])
                self.launched += 1
        if not unsettled:
            return
        for gradients, fresh in zip(mine, rest[: len(mine)], strict=True):
            if fresh:
                self._launch(gradients)
        arrived = {name for name, flag in zip(self.names, rest[len(mine) :], strict=True) if flag}
        for gradients in mine:
            gradients.touched = {name for name in gradients.bucket.params if name in arrived}

    def _word(self, *, begins: bool) -> Tensor:
        """What a rank says in a round: whether a cycle begins, whether it holds anything new, and what."""
        if begins:
            return torch.tensor([1, *(0 for _ in range(1 + len(self.buckets) + len(self.names)))], dtype=torch.int32)
        mine = [gradients_of(bucket) for bucket in self.buckets]
        fresh = (1 if gradients.fresh else 0 for gradients in mine)
        touched = (1 if name in gradients.touched else 0 for gradients in mine for name in gradients.bucket.params)
        return torch.tensor([0, 0 if self.settled else 1, *fresh, *touched], dtype=torch.int32)

    def clear(self) -> None:
        """Forget the gradients of this update."""
        for bucket in self.buckets:
            gradients_of(bucket).clear()
        self.launched = 0
        self.settled = True
        for group in {
            self.control,
            *(g for bucket in self.buckets for g in (bucket.shard_group, bucket.replica_group)),
        }:
            group.mark()

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def gradients_of(bucket: Bucket) -> Gradients:
    """The gradients of a trainable bucket."""
    assert bucket.gradients is not None
    return bucket.gradients
