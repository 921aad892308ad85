"""One flat bucket: parameters as views of it, their gradients, and this rank's shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dsx.comm.collectives import Collectives
from dsx.deferred.materialise import absent, seed_of
from dsx.deferred.recorder import fill
from dsx.errors import EngineError
from dsx.flat.layout import Layout, Slot, Span
from dsx.flat.policy import Policy
from dsx.optim.piece import Piece

if TYPE_CHECKING:
    from dsx.flat.gradients import Gradients
    from dsx.plugin.roles import Codec


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of one bucket."""

    parameter: torch.dtype
    accumulate: torch.dtype
    reduce: torch.dtype
    master: torch.dtype
    coded: bool = False
    """Gradients travel in the engine's codec instead of ``reduce``."""


class Bucket:
    """Parameters of one family, dtype, trainability and optimizer group, in one flat buffer.

    ``flat`` is whole and in the parameter dtype; ``master`` is this rank's shard in the master dtype. Where both have
    one dtype, the master *is* the shard's range of ``flat``, and nothing is kept twice.
    """

    def __init__(
        self,
        params: Mapping[str, nn.Parameter],
        *,
        layout: Layout,
        policy: Policy,
        precision: Precision,
        shard_group: Collectives,
        replica_group: Collectives,
        group_index: int,
        trainable: bool,
        codec: Codec | None = None,
    ) -> None:
        self.params = dict(params)
        self.layout = layout
        self.policy = policy
        self.precision = precision
        self.shard_group = shard_group
        self.replica_group = replica_group
        self.group_index = group_index
        self.trainable = trainable
        self.codec = codec
        """In what gradients travel; ``None``: as numbers, in ``precision.reduce``."""
        self.spans: tuple[Span, ...] = layout.spans(shard_group.rank)
        self.device = next(iter(self.params.values())).device
        self.flat: Tensor | None = None
        self.stand_in: Tensor | None = None
        """The one element that all parameters show while they are released."""
        self.released: dict[str, int] = {}
        """Versions of the parameters when they were released."""
        self.shard: Tensor
        self.master: Tensor
        self.gradients: Gradients | None = None
        self.pieces: tuple[Piece, ...] = ()

    @property
    def rank(self) -> int:
        return self.shard_group.rank

    def own(self, flat: Tensor) -> Tensor:
        """This rank's range of a whole buffer."""
        start, stop = self.layout.range(self.rank)
        return flat[start:stop]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """A whole buffer by name, each in the parameter's shape."""
        return {slot.name: view_of(flat, slot) for slot in self.layout.slots}

    def adopt(self, *, seed: int) -> None:
        """Take the parameters' values into the bucket; they become views of it and their old memory is freed."""
        precise = torch.zeros(self.layout.numel, dtype=self.precision.master, device=self.device)
        for slot in self.layout.slots:
            fill(self.params[slot.name], view_of(precise, slot), seed=seed_of(slot.name, seed))
        self.replica_group.broadcast(precise, source=0, site="initial weights")
        self.shard_group.broadcast(precise, source=0, site="initial weights")
        self.install(precise)

    def install(self, precise: Tensor) -> None:
        """Set weights from a whole buffer in the master dtype."""
        same = self.precision.parameter == self.precision.master
        whole = precise if same else precise.to(self.precision.parameter)
        if self.policy.shard_parameters:
            self.shard = self.own(whole).clone()
            self.master = self.shard if same else self.own(precise).clone()
            self.drop()
            return
        self.shard = self.own(whole)
        if not self.trainable or same:
            self.master = self.shard
        else:
            self.master = precise if self.layout.degree == 1 else self.own(precise).clone()
        self.show(whole)

    def show(self, whole: Tensor) -> None:
        """Make the parameters views of a whole buffer. EngineError where one was written while it was not there."""
        if self.stand_in is not None:
            self._refuse_written(self.stand_in)
        self.flat, self.stand_in = whole, None
        for name, view in self.views(whole).items():
            self.params[name].data = view

    def drop(self) -> None:
        """Let the whole buffer go; the parameters keep their shape, and read as not a number."""
        self.flat = None
        self.stand_in = absent((), dtype=self.precision.parameter, device=self.device)
        for slot in self.layout.slots:
            self.params[slot.name].data = self.stand_in.expand(slot.shape)
        self.released = {name: param._version for name, param in self.params.items()}

    def _refuse_written(self, stand_in: Tensor) -> None:
        written = [name for name, param in self.params.items() if param._version != self.released[name]]
        # Edits through .data leave no trace but this; reading it would make an accelerator wait.
        if not written and self.device.type == "cpu" and not bool(stand_in.isnan()):
            written = list(self.params)
        if written:
            raise EngineError(
                f"parameters written while they rest as shards, so that the values are lost: {', '.join(written)}. "
                "Write them inside engine.gathered(names, writer=RANK)"
            )

    def make_pieces(self) -> tuple[Piece, ...]:
        """Cut the shard into what an optimizer updates."""
        separate = self.master.data_ptr() != self.shard.data_ptr() or self.master.dtype != self.shard.dtype
        pieces = []
        for span in self.spans:
            shape = self.piece_shape(span)
            master = nn.Parameter(cut(self.master, span, shape))
            pieces.append(Piece(span.name, master, None, cut(self.shard, span, shape) if separate else None))
        self.pieces = tuple(pieces)
        return self.pieces

    def piece_shape(self, span: Span) -> tuple[int, ...]:
        """An owner of whole parameters sees their shape; of a range, or a scalar, a flat tensor.

        A scalar has one dimension in every layout, so that its moments differ in shape from counters.
        """
        if self.layout.ownership == "parameter" or self.layout.degree == 1:
            return self.layout.by_name[span.name].shape or (1,)
        return (span.numel,)

    def refresh_master(self) -> None:
        """Take the masters from the (edited) whole parameters; those that were not edited keep their precision."""
        if self.flat is not None:
            source = self.own(self.flat)
            if source.data_ptr() != self.shard.data_ptr():
                self.shard.copy_(source)
            if self.master.data_ptr() != self.shard.data_ptr():
                kept = self.master.to(source.dtype) == source
                self.master.copy_(torch.where(kept, self.master, source.to(self.master.dtype)))

    def publish(self, *, wait: bool = True) -> object:
        """After an update: bring the shards of all owners together, where parameters are whole."""
        if self.flat is None:
            return None
        return self.shard_group.all_gather(self.flat, self.shard, site="publish weights", wait=wait)

    def whole_master(self) -> Tensor:
        """The masters of all ranks in one buffer; a collective where they are sharded."""
        if self.layout.degree == 1:
            return self.master
        whole = torch.empty(self.layout.numel, dtype=self.master.dtype, device=self.device)
        self.shard_group.all_gather(whole, self.master, site="gather master weights")
        return whole


def cut(shard: Tensor, span: Span, shape: tuple[int, ...]) -> Tensor:
    """One span of a shard, as a view of this shape."""
    return shard[span.offset : span.offset + span.numel].view(shape)


def view_of(flat: Tensor, slot: Slot) -> Tensor:
    """One parameter of a whole buffer, in its shape."""
    return flat[slot.offset : slot.stop].view(slot.shape)
