"""Meshes over real ranks: groups, control, two meshes in one process, closing."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from dsx.errors import EngineError, LaunchError, PlanError
from dsx.mesh.init import init_distributed
from dsx.mesh.mesh import Mesh
from dsx.mesh.world import world_from_env
from dsx.plugin.types import MeshAxis, World
from dsx.testing.ranks import run_ranks

SQUARE = (MeshAxis("data", 2), MeshAxis("tensor", 2))


def _groups() -> dict[str, object]:
    with Mesh(SQUARE, world=init_distributed(), timeout=20.0) as mesh:
        found: dict[str, object] = {}
        for axes in (("data",), ("tensor",), ("data", "tensor"), ("pipe",)):
            group = mesh.group(*axes)
            value = torch.full((10_000,), float(mesh.world.rank))
            group.all_reduce(value, site="sum")
            found["+".join(axes)] = (group.ranks, group.rank, value[0].item())
        assert mesh.group("tensor") is mesh.group("tensor")
        assert mesh.group("data", "tensor") is mesh.world_group
        assert mesh.group("data", purpose="control") is not mesh.group("data")
        found["control"] = mesh.control.exchange_objects(mesh.world.rank, site="agree")
        found["place"] = (mesh.size("data"), mesh.coordinate("data"), mesh.coordinate("tensor"), mesh.size("pipe"))
    return found


def test_groups_along_axes() -> None:
    found = run_ranks(_groups, world=4)
    for rank, groups in enumerate(found):
        data, tensor = divmod(rank, 2)
        along_data, along_tensor = (tensor, 2 + tensor), (2 * data, 2 * data + 1)
        assert groups["data"] == (along_data, data, float(sum(along_data)))
        assert groups["tensor"] == (along_tensor, tensor, float(sum(along_tensor)))
        assert groups["data+tensor"] == ((0, 1, 2, 3), rank, 6.0)
        assert groups["pipe"] == ((rank,), 0, float(rank))
        assert groups["control"] == [0, 1, 2, 3]
        assert groups["place"] == (2, data, tensor, 1)


def _two_meshes() -> tuple[int, int, list[str]]:
    world = init_distributed()
    before = len(dist.distributed_c10d._world.pg_map)
    teacher = Mesh((MeshAxis("data", 2),), world=world, timeout=20.0)
    student = Mesh((MeshAxis("data", 2),), world=world, timeout=20.0)
    for mesh in (teacher, student, teacher):
        mesh.group("data").barrier(site="go")
    teacher.close()
    teacher.close()
    value = torch.ones(3)
    student.group("data").all_reduce(value, site="still here")
    assert value.tolist() == [2.0] * 3
    with pytest.raises(EngineError, match="closed"):
        teacher.group("data")
    student.close()
    assert dist.is_initialized()  # a mesh destroys only what it made
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("dsx")]
    return before, len(dist.distributed_c10d._world.pg_map), left


def test_two_meshes_in_one_process_close_apart_and_leave_nothing() -> None:
    for before, after, threads in run_ranks(_two_meshes):
        assert before == after
        assert threads == []


def test_alone_without_torch_distributed() -> None:
    world = init_distributed()
    assert world == World()
    assert not dist.is_initialized()
    with Mesh(world=world) as mesh:
        value = torch.ones(2)
        mesh.group("data").all_reduce(value, site="x")
        mesh.world_group.barrier(site="x")
        assert mesh.control.exchange_objects(7, site="x") == [7]
        assert value.tolist() == [1.0, 1.0]
        assert mesh.size("data") == 1


def test_mesh_of_another_size_than_the_world() -> None:
    with pytest.raises(PlanError, match="mesh data 2 x tensor 2 has 4 places, the world 1 processes"):
        Mesh(SQUARE, world=World())


def test_world_without_torch_distributed() -> None:
    with pytest.raises(EngineError, match=r"call dsx\.init_distributed"):
        Mesh(world=World(size=2))


def _device_mesh() -> tuple[list[float], tuple[str, ...] | None]:
    with Mesh(SQUARE, world=init_distributed(), timeout=20.0) as mesh:
        torch_mesh = mesh.device_mesh()
        sharded = distribute_tensor(torch.arange(4.0), torch_mesh["tensor"], [Shard(0)])
        return sharded.to_local().tolist(), torch_mesh.mesh_dim_names


def test_torchs_device_mesh_shares_the_groups() -> None:
    found = run_ranks(_device_mesh, world=4)
    assert found[1] == ([2.0, 3.0], ("data", "tensor"))
    assert found[2] == ([0.0, 1.0], ("data", "tensor"))


def _initialise_twice() -> tuple[World, World]:
    return init_distributed("gloo", timeout=30), init_distributed()


def test_an_initialised_torch_distributed_is_used_as_it_is() -> None:
    for rank, worlds in enumerate(run_ranks(_initialise_twice, init=False)):
        assert worlds == (World(rank, 2, rank, 2),) * 2


def _by_init_method(path: str) -> int:
    rank = int(os.environ["RANK"])
    init_distributed(init_method=f"file://{path}", rank=rank, world_size=2, timeout=30.0)
    return dist.get_world_size()


def test_init_method_rank_and_size_are_honoured(tmp_path: object) -> None:
    assert run_ranks(_by_init_method, f"{tmp_path}/meet", init=False) == [2, 2]


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, World()),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, World(3, 4, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, World(1, 2, 0, 1)),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            World(5, 8, 1, 4),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, World()),
    ],
)
def test_world_from_what_the_starter_left(env: dict[str, str], wanted: World) -> None:
    assert world_from_env(env) == wanted


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK=unset and WORLD_SIZE=2; set both"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'; wanted a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2"),
    ],
)
def test_environments_that_make_no_sense(env: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        world_from_env(env)


def test_half_a_place_is_refused() -> None:
    with pytest.raises(LaunchError, match="give both, or neither"):
        init_distributed(rank=1)
