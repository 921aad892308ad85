"""The mesh of an engine: its axes, and the groups of ranks along them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dsx.comm.collectives import Collectives, Listener
from dsx.comm.journal import Account
from dsx.comm.watchdog import Watch
from dsx.errors import EngineError, PlanError
from dsx.mesh.init import backend_of
from dsx.mesh.layout import AxisLayout
from dsx.plugin.types import MeshAxis, World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA = "data"
CONNECT = 60.0
"""Seconds that ranks are given at least to connect a group, whatever the deadline of its collectives."""


class Mesh:
    """Groups of ranks along named axes. Several meshes may live in one process; each makes and closes its own groups.

    A group is made when it is first asked for, together with its siblings along the same axes: every rank asks in the
    same order. (Groups made by their members alone are named after their ranks, and a second engine in one process
    would meet the first one's addresses.) All groups of a mesh share one watch: a hang in one ends them all with one
    report.
    """

    def __init__(
        self,
        axes: Sequence[MeshAxis] = (),
        *,
        world: World | None = None,
        device_type: str = "cpu",
        backend: str | None = None,
        timeout: float = 1800.0,
    ) -> None:
        self.world = world if world is not None else World()
        self.device_type = device_type
        self.timeout = timeout
        self.layout = AxisLayout(tuple(axes) or (MeshAxis(DATA, self.world.size),))
        if self.layout.size != self.world.size:
            degrees = " x ".join(f"{name} {degree}" for name, degree in self.layout.outer.items())
            raise PlanError(
                f"the mesh {degrees} has {self.layout.size} places, the world {self.world.size} processes; start as "
                "many processes as the mesh has places, or change a degree"
            )
        self._backend = backend if backend is not None else _default_backend(device_type)
        self._groups: dict[tuple[tuple[int, ...], str], Collectives] = {}
        self._listener: Listener | None = None
        self._made: list[dist.ProcessGroup] = []
        self._closed = False
        self._watch: Watch | None = None
        self._require_started()
        self._finalizer = weakref.finalize(self, _destroy, self._made)

    @property
    def axes(self) -> tuple[MeshAxis, ...]:
        """The axes, slowest first."""
        return self.layout.axes

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for an axis that this mesh has not."""
        return self.layout.degree(axis) if axis in self.layout.names else 1

    def coordinate(self, axis: str) -> int:
        """This rank's place along an axis; 0 for an axis that this mesh has not."""
        return self.layout.coordinate(self.world.rank, axis) if axis in self.layout.names else 0

    @property
    def world_group(self) -> Collectives:
        """All ranks of the mesh."""
        return self._get(tuple(self.layout.outer), "world", "data")

    @property
    def control(self) -> Collectives:
        """All ranks, for small agreements of the host: a communicator of its own, on the CPU."""
        return self._get(tuple(self.layout.outer), "world", "control")

    def group(self, *axes: str, purpose: str = "data") -> Collectives:
        """The ranks that differ from this one only along these axes; axes that the mesh has not count as degree 1.

        ``purpose="control"`` gives a second communicator over the CPU; any other name one more over the device.
        """
        known = tuple(axis for axis in axes if axis in self.layout.names)
        return self._get(known, "+".join(axes) or "self", purpose)

    def account(self) -> Account:
        """Calls, bytes sent by this rank and seconds waited, by operation, summed over all groups; a copy."""
        total = Account()
        for group in self._groups.values():
            for op, cost in group.account.by_op.items():
                total.add(op, calls=cost.calls, sent=cost.bytes, seconds=cost.seconds)
        return total

    def kept_bytes(self) -> int:
        """Bytes that all groups keep between collectives, to receive into."""
        return sum(group.transport.kept_bytes() for group in self._groups.values())

    def listen(self, listener: Listener | None) -> None:
        """Tell this of every collective as it ends, in groups that are and that will be; ``None``: nobody."""
        self._listener = listener
        for group in self._groups.values():
            group.listener = listener

    def device_mesh(self) -> DeviceMesh:
        """torch's DeviceMesh over the outer axes, for DTensor: it shares this mesh's groups."""
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

        names = tuple(self.layout.outer)
        shape = tuple(self.layout.outer.values())
        groups = [self.group(name).process_group for name in names]
        made = [group for group in groups if group is not None]
        if len(made) < len(names):
            return init_device_mesh(self.device_type, shape, mesh_dim_names=names)
        ranks = torch.arange(self.world.size).view(shape)
        if len(made) == 1:
            return DeviceMesh.from_group(made[0], self.device_type, mesh_dim_names=names)
        return DeviceMesh.from_group(made, self.device_type, mesh=ranks, mesh_dim_names=names)

    def close(self) -> None:
        """Destroy the groups that this mesh made, and end its watch. Twice is once."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        self._groups.clear()
        _destroy(self._made)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_started(self) -> None:
        if self.world.size > 1 and not dist.is_initialized():
            raise EngineError(
                f"found a world of {self.world.size} processes without torch.distributed; call "
                "dsx.init_distributed() first"
            )

    def _get(self, axes: tuple[str, ...], name: str, purpose: str) -> Collectives:
        if self._closed:
            raise EngineError("this mesh is closed; make a new engine")
        ranks = self.layout.group_of(self.world.rank, axes)
        known = self._groups.get((ranks, purpose))
        if known is None:
            known = self._groups[ranks, purpose] = self._make(ranks, axes, name, purpose)
            known.listener = self._listener
        return known

    def _make(self, ranks: tuple[int, ...], axes: tuple[str, ...], name: str, purpose: str) -> Collectives:
        title = name if purpose == "data" else f"{name} {purpose}"
        if len(ranks) == 1:
            return Collectives(None, name=title, ranks=ranks, deadline=self.timeout)
        if len(ranks) < self.world.size and self._watch is None:
            self.world_group  # noqa: B018  the watch speaks through the world's store
        backend = "gloo" if purpose == "control" and self._backend != "fake" else self._backend
        limit = timedelta(seconds=max(self.timeout, CONNECT))
        siblings = dict.fromkeys(self.layout.group_of(rank, axes) for rank in range(self.world.size))
        made = {members: dist.new_group(list(members), timeout=limit, backend=backend) for members in siblings}
        group = made[ranks]
        self._made.append(group)
        if self._watch is None:
            self._watch = Watch.of(group, deadline=self.timeout)
        device = torch.device("cpu") if backend == "gloo" else torch.device(self.device_type)
        return Collectives(group, name=title, ranks=ranks, deadline=self.timeout, watch=self._watch, device=device)


def _default_backend(device_type: str) -> str:
    if dist.is_initialized() and dist.get_backend() == "fake":
        return "fake"
    return backend_of(device_type)


def _destroy(groups: list[dist.ProcessGroup]) -> None:
    while groups:
        group = groups.pop()
        if dist.is_initialized():
            dist.destroy_process_group(group)
