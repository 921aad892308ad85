"""Checkpoints over real gloo groups: other world sizes, DTensors, a rank that fails."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dsx.checkpoint.consolidate import read_full
from dsx.checkpoint.load import load
from dsx.checkpoint.save import save
from dsx.checkpoint.stores import DirectoryStore
from dsx.comm.collectives import Collectives
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart
from dsx.testing.ranks import run_ranks
from dsx.testing.threads import Holder


def whole() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(35.0).reshape(5, 7), "b": torch.arange(3.0), "empty": torch.zeros(0, 2)}


def write(root: str) -> None:
    group = Collectives(dist.group.WORLD)
    holder = Holder(whole(), rank=group.rank, size=group.size)
    save(root, tag="t", parts=[holder.part()], group=group, client_state={"epoch": 1})


def read(root: str) -> dict[str, int]:
    group = Collectives(dist.group.WORLD)
    holder = Holder(whole(), rank=group.rank, size=group.size)
    holder.erase()
    found = load(root, parts=[holder.part()], group=group)
    assert holder.equals(whole())
    return found.client_state


def write_dtensor(root: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    state = {"w": distribute_tensor(torch.arange(35.0).reshape(5, 7), mesh, [Shard(1)])}
    part = CheckpointPart("model", 1, lambda: state, lambda loaded: None)
    save(root, tag="t", parts=[part], group=Collectives(dist.group.WORLD))
    state["w"].to_local().zero_()
    load(root, parts=[part], group=Collectives(dist.group.WORLD))
    assert torch.equal(state["w"].full_tensor(), torch.arange(35.0).reshape(5, 7))


class FailsOnLast(DirectoryStore):
    def writer(self, tag: str, *, rank: int = 0) -> object:
        if rank == 2:
            raise OSError(5, "Input/output error")
        return super().writer(tag, rank=rank)


def fail(root: str) -> str:
    group = Collectives(dist.group.WORLD)
    holder = Holder(whole(), rank=group.rank, size=group.size)
    try:
        save(root, tag="t", parts=[holder.part()], group=group, store=FailsOnLast(Path(root)))
    except CheckpointError as error:
        return str(error)
    return "no error"


def test_three_ranks_write_and_two_read(tmp_path: Path) -> None:
    """B45: another world size, over real process groups; a rank that fails takes all along and nothing away."""
    run_ranks(write, str(tmp_path), world=3)
    errors = run_ranks(fail, str(tmp_path), world=3)
    assert len(set(errors)) == 1
    assert "Input/output error (rank 2 of 3; 1 failed)" in errors[0]
    assert run_ranks(read, str(tmp_path), world=2) == [{"epoch": 1}] * 2
    assert torch.equal(read_full(tmp_path)["a"], whole()["a"])


def test_dtensors_are_their_own_boxes(tmp_path: Path) -> None:
    run_ranks(write_dtensor, str(tmp_path), world=2)
    assert torch.equal(read_full(tmp_path)["w"], torch.arange(35.0).reshape(5, 7))
