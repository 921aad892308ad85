"""The driver: accumulate, reduce, own shard, update, publish. One path for every stage; policies say what rests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dsx.comm.collectives import Collectives
from dsx.errors import EngineError, did_you_mean
from dsx.flat import access, footprint, state
from dsx.flat.bucket import Bucket
from dsx.flat.norms import global_norm
from dsx.flat.policy import Policy
from dsx.flat.reducer import Reducer, gradients_of
from dsx.mesh.mesh import Mesh
from dsx.optim.binding import OptimizerBinding
from dsx.optim.piece import Piece
from dsx.plugin.roles import Norm, StateBytes
from dsx.plugin.types import CheckpointPart


class Residency(Protocol):
    """Where parameters rest between uses. The default: whole, always."""

    def forward(self) -> AbstractContextManager[None]:
        """Around each forward of the engine."""

    def arrived(self, bucket: Bucket, name: str) -> None:
        """A gradient of this bucket came; its parameters may not be needed any more."""

    def settle(self) -> None:
        """No forward or backward runs: everything that need not be whole is released."""

    def hold(self, buckets: Sequence[Bucket]) -> AbstractContextManager[None]:
        """These buckets are whole within the context."""

    def close(self, *, whole: bool) -> None:
        """Take the hooks off the model; if asked for, parameters become whole, by a collective."""


class Whole:
    """Parameters are always whole."""

    def forward(self) -> AbstractContextManager[None]:
        return nullcontext()

    def arrived(self, bucket: Bucket, name: str) -> None:
        pass

    def settle(self) -> None:
        pass

    def hold(self, buckets: Sequence[Bucket]) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self, *, whole: bool) -> None:
        pass


ALIKE = ("data", "sequence", "tensor")
"""Axes along which ranks hold the same parameters or parts of them: they reduce the same buckets in the same order."""


class FlatDriver:
    """The gradient path over flat buckets."""

    takes_codec = True
    """Gradients travel in the codec that the plan names."""

    def __init__(
        self,
        model: nn.Module,
        buckets: Sequence[Bucket],
        *,
        binding: OptimizerBinding,
        mesh: Mesh,
        residency: Residency | None = None,
    ) -> None:
        self.model = model
        self.buckets = tuple(buckets)
        self.trainable = tuple(bucket for bucket in buckets if bucket.trainable)
        self.mesh = mesh
        self.world: Collectives = mesh.world_group
        self.replicas = mesh.size("data") * mesh.size("sequence")
        """Ranks that contribute a loss of their own: one divisor for all families, whichever ranks sum a gradient."""
        self.residency: Residency = residency or Whole()
        self.micro_batches = 1
        self.loss_scale = 1.0
        self.steps: dict[str, int] = {name: 0 for bucket in self.trainable for name in bucket.params}
        """Updates that each parameter has had."""
        self.reducer = Reducer(
            self.trainable,
            control=mesh.group(*ALIKE, purpose="control"),
            on_arrival=None if residency is None else residency.arrived,
        )
        self.aliases = state.aliases_of(model)
        pieces: list[list[Piece]] = [[] for _ in binding.groups]
        for bucket in self.trainable:
            pieces[bucket.group_index].extend(bucket.make_pieces())
        self.pieces = [piece for group in pieces for piece in group]
        self.updater = binding(pieces)
        self.guards = [] if self.updater is None else [self.optimizer.register_step_pre_hook(self._refuse_step)]

    def _refuse_step(self, *_: Any) -> None:
        """Called before the optimizer's own step(), which only a driven foreign optimizer may make."""
        if not getattr(self.updater, "driven", False):
            raise EngineError(
                "step() was called on the engine's optimizer, whose gradients the engine holds: call engine.step()"
            )

    # One update ----------------------------------------------------------------------------------------------------

    def begin(self, *, micro_batches: int) -> None:
        """An update begins that divides its gradients by this many micro-batches."""
        self.micro_batches = micro_batches

    def forward(self) -> AbstractContextManager[None]:
        """Around each forward of the engine."""
        return self.residency.forward()

    def expect(self, *, last: bool, hold: bool = False) -> None:
        """A backward comes. It may be overlapped by reduction if it is the last, or if gradients rest as shards."""
        each = all(gradients_of(bucket).separate for bucket in self.trainable)
        overlap = all(bucket.policy.overlap for bucket in self.trainable)
        self.reducer.early = bool(self.trainable) and overlap and not hold and (last or each)

    def reduce(self) -> None:
        """Complete every reduction that the overlap has not. Idempotent."""
        self.residency.settle()
        self.reducer.complete()

    @property
    def divisor(self) -> float:
        """By what the sums in the buckets are divided to give gradients."""
        policy = self.trainable[0].policy if self.trainable else Policy()
        replicas = self.replicas if policy.average else 1
        return self.loss_scale * self.micro_batches * replicas / policy.predivide

    def norm(self, *, order: float = 2.0) -> Norm:
        """The norm of all gradients, each element counted by its one owner."""
        total = global_norm(self.trainable, order=order, divisor=self.divisor, control=self.mesh.control)
        if math.isfinite(total):
            return Norm(total, finite=True)
        return Norm(total, finite=False, bad=self._first_bad())

    def _first_bad(self) -> str | None:
        found = [
            span.name
            for bucket in self.trainable
            for span in bucket.spans
            if (gradient := gradients_of(bucket).of(span)) is not None and not bool(torch.isfinite(gradient).all())
        ]
        order = {name: index for index, (name, _) in enumerate(self.model.named_parameters())}
        everywhere = [name for names in self.world.exchange_objects(found, site="name bad gradients") for name in names]
        return min(everywhere, key=lambda name: order[name], default=None)

    def update(self, *, factor: float = 1.0) -> None:
        """One optimizer step over this rank's shards, then the new weights are published."""
        if self.updater is None:
            raise EngineError("this engine has no optimizer: give dsx.initialize one, or name one in the configuration")
        for bucket in self.trainable:
            gradients = gradients_of(bucket)
            for span, piece in zip(bucket.spans, bucket.pieces, strict=True):
                gradient = gradients.of(span)
                piece.grad = None if gradient is None else gradient.view(piece.master.shape)
            for name in gradients.touched:
                self.steps[name] += 1
        self.updater.update(self.pieces, factor=factor / self.divisor)
        for piece in self.pieces:
            piece.grad = None
        pending = [bucket.publish(wait=False) for bucket in self.buckets if bucket.trainable]
        for work in pending:
            if work is not None:
                work.wait()  # type: ignore[attr-defined]
        self.reducer.clear()

    def scale_gradients(self, factor: float) -> None:
        """Multiply the reduced gradients."""
        for bucket in self.trainable:
            owned = gradients_of(bucket).owned
            if owned is not None:
                owned.mul_(factor)

    def discard(self) -> None:
        """Clear the gradients without an update."""
        self.reducer.complete()
        self.reducer.clear()

    # Named access --------------------------------------------------------------------------------------------------

    def gradient(self, name: str) -> Tensor | None:
        """The whole reduced gradient of one parameter, unscaled, fp32; a collective."""
        self.reduce()
        bucket = self._bucket_of(name)
        return access.whole_gradient(bucket, self.canonical(name), divisor=self.divisor)

    def set_gradient(self, name: str, value: Tensor) -> None:
        """Replace the reduced gradient of one parameter; the same value on each rank."""
        self.reduce()
        bucket = self._bucket_of(name)
        access.set_whole_gradient(bucket, self.canonical(name), value, divisor=self.divisor)

    def local_gradient(self, name: str) -> Tensor | None:
        """This rank's part of the reduced gradient, flat, as it is kept: a view, edits count."""
        self.reduce()
        return access.local_gradient(self._bucket_of(name), self.canonical(name))

    @contextmanager
    def gathered(self, names: Sequence[str] | None = None, *, writer: int | None = None) -> Iterator[None]:
        """Parameters whole within the context; with a writer rank, its edits reach all ranks afterwards."""
        params = dict(self.model.named_parameters())
        if names is not None:
            unknown = [name for name in names if self.canonical(name) not in params]
            if unknown:
                raise EngineError(
                    f"gathered() found no parameter named {unknown[0]!r}{did_you_mean(unknown[0], params)}"
                )
            params = {name: params[name] for name in dict.fromkeys(map(self.canonical, names))}
        chosen = [bucket for bucket in self.buckets if params.keys() & bucket.params.keys()]
        with self.residency.hold(chosen), access.watched(params, chosen, writer=writer, world=self.world):
            yield

    def canonical(self, name: str) -> str:
        """The first name of a parameter that has several."""
        return self.aliases.get(name, name)

    def _bucket_of(self, name: str) -> Bucket:
        wanted = self.canonical(name)
        for bucket in self.trainable:
            if wanted in bucket.params:
                return bucket
        raise EngineError(f"no trainable parameter is named {name!r}")

    # State ---------------------------------------------------------------------------------------------------------

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole fp32 weights and buffers by name, on the host, on each rank; a collective."""
        return state.full_state_dict(self)

    def parts(self, *, loading: bool = False) -> list[CheckpointPart]:
        """Model and optimizer as named boxes."""
        return state.parts(self, loading=loading)

    def state_bytes(self) -> tuple[StateBytes, StateBytes]:
        """(predicted, counted) for this rank, at rest after a backward."""
        return footprint.predicted_bytes(self), footprint.counted_bytes(self)

    def close(self, *, whole: bool = True) -> None:
        """Release hooks; the module keeps weights of its own, whole if asked for."""
        self.reducer.close()
        for guard in self.guards:
            guard.remove()
        for bucket in self.buckets:
            bucket.gradients = None
        self.residency.close(whole=whole)

    @property
    def optimizer(self) -> Any:
        """The optimizer object that users see, or ``None``."""
        return getattr(self.updater, "inner", self.updater)
