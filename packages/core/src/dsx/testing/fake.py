"""A world of any size in one process, for tests of plans and layouts: every other rank is this rank's mirror image.

A sum over n ranks is n times this rank's tensor, a gathered whole repeats its shard, a broadcast changes nothing; in an
exchange each rank sends this one what this one keeps for itself. Bytes and calls are counted as on a real ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsx.comm.collectives import Collectives
from dsx.comm.journal import Record
from dsx.comm.transport import Done, Pending
from dsx.mesh.mesh import Mesh
from dsx.plugin.types import MeshAxis, World


class MirrorTransport:
    """Moves nothing: the other ranks hold what this one holds."""

    device = torch.device("cpu")

    def __init__(self, *, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def all_reduce(self, t: Tensor, *, op: str, record: Record) -> Pending:
        """A sum is ``size`` times the tensor; an extreme is the tensor."""
        if op == "sum":
            t.mul_(self._size)
        return self._sent(2 * self._share(t))

    def reduce_scatter(self, output: Tensor, input: Tensor, *, op: str, record: Record) -> Pending:
        """This rank's part, ``size`` times."""
        part = input.view(self._size, -1)[self._rank]
        output.copy_(part * self._size if op == "sum" else part)
        return self._sent(self._share(input))

    def all_gather(self, output: Tensor, shard: Tensor, *, record: Record) -> Pending:
        """The shard in every place."""
        output.copy_(shard.clone().repeat(self._size))
        return self._sent(self._share(output))

    def all_to_all(self, output: Tensor, input: Tensor, *, record: Record) -> Pending:
        """Every rank's input is this one's, and each sends the part of this rank: that part, in every place."""
        output.view(self._size, -1).copy_(input.view(self._size, -1)[self._rank])
        return self._sent(self._share(input))

    def broadcast(self, t: Tensor, *, source: int, record: Record) -> Pending:
        """The source holds the same."""
        return self._sent(t.numel() * t.element_size() * (self._size - 1) if source == self._rank else 0)

    def kept_bytes(self) -> int:
        """Nothing is kept."""
        return 0

    def sever(self) -> None:
        """Nobody waits."""

    def _share(self, whole: Tensor) -> int:
        return whole.numel() * whole.element_size() * (self._size - 1) // self._size

    def _sent(self, count: int) -> Pending:
        done = Done()
        done.sent = count
        return done


class FakeMesh(Mesh):
    """A mesh of any size without torch.distributed: ``FakeMesh(axes, world=World(rank=5, size=64))``."""

    def __init__(
        self, axes: Sequence[MeshAxis] = (), *, world: World, device_type: str = "cpu", timeout: float = 1800.0
    ) -> None:
        super().__init__(axes, world=world, device_type=device_type, backend="mirror", timeout=timeout)

    def _require_started(self) -> None:
        """Nothing has to be started."""

    def _make(self, ranks: tuple[int, ...], axes: tuple[str, ...], name: str, purpose: str) -> Collectives:
        title = name if purpose == "data" else f"{name} {purpose}"
        if len(ranks) == 1:
            return Collectives(None, name=title, ranks=ranks)
        place = ranks.index(self.world.rank)
        collectives = Collectives(None, name=title, ranks=ranks, transport=MirrorTransport(rank=place, size=len(ranks)))
        collectives.rank = place
        return collectives


def fake_worlds(size: int) -> list[World]:
    """Each place in a world of this size, all on one machine."""
    return [World(rank=rank, size=size, local_rank=rank, local_size=size) for rank in range(size)]
