"""Mesh axes: the product of degrees is the number of ranks, data takes the rest, nested axes divide their own."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.errors import PlanError
from dsx.planning.axes import solve_axes
from dsx.plugin import MeshAxis
from dsx.plugin.manager import Tagged


def solve(*axes: MeshAxis, world: int) -> dict[str, int | None]:
    named = [Tagged(f"p{index}", axis) for index, axis in enumerate(axes)]
    return {axis.name: axis.degree for axis in solve_axes(named, world_size=world)}


@pytest.mark.parametrize("world", [1, 2, 7])
def test_data_alone_is_the_world(world: int) -> None:
    assert solve(world=world) == {"data": world}


@settings(deadline=None)  # a loaded machine is no failure
@given(pipe=st.integers(1, 6), tensor=st.integers(1, 6), data=st.integers(1, 6), expert=st.integers(1, 6))
def test_product_is_the_world_and_inner_divides_outer(pipe: int, tensor: int, data: int, expert: int) -> None:
    axes = [MeshAxis("tensor", tensor), MeshAxis("pipe", pipe), MeshAxis("expert", expert, inside="data")]
    world = pipe * tensor * data
    if data % expert:
        with pytest.raises(PlanError, match=f"the {data} ranks of axis 'data': found expert {expert}"):
            solve(*axes, world=world)
        return
    solved = solve(*axes, world=world)
    assert math.prod(solved[name] or 0 for name in ("pipe", "data", "tensor")) == world
    assert solved["data"] == data
    assert list(solved) == ["pipe", "data", "expert", "tensor"]


def test_order_of_plugins_means_nothing() -> None:
    axes = [MeshAxis("tensor", 2), MeshAxis("expert", 2, inside="data"), MeshAxis("pipe", 2), MeshAxis("slice", 3)]
    results = {tuple(solve(*some, world=48).items()) for some in permutations(axes)}
    assert results == {(("slice", 3), ("pipe", 2), ("data", 4), ("expert", 2), ("tensor", 2))}


def test_degrees_that_do_not_fit_show_the_numbers() -> None:
    with pytest.raises(PlanError) as caught:
        solve(MeshAxis("pipe", 3, why="pipeline.stages"), world=8)
    for part in ("8 ranks", "pipe 3 = 3", "pipeline.stages", "product is 2", "multiple of 3"):
        assert part in str(caught.value)


def test_fixed_data_must_use_every_rank() -> None:
    assert solve(MeshAxis("data", 4), MeshAxis("tensor", 2), world=8) == {"data": 4, "tensor": 2}
    with pytest.raises(PlanError, match="exactly that many"):
        solve(MeshAxis("data", 2), MeshAxis("tensor", 2), world=8)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ([MeshAxis("pipe", 2, why="a"), MeshAxis("pipe", 2, why="b")], "'pipe' is named by 'p0'.* and 'p1'"),
        ([MeshAxis("pipe", None)], "'pipe' and 'data' all want what is left|'data' and 'pipe' all want"),
        ([MeshAxis("expert", 2, inside="dat")], "inside 'dat', which is not an axis"),
        ([MeshAxis("pipe", 0)], "degree 0, wanted at least 1"),
        ([MeshAxis("a", 1, inside="b"), MeshAxis("b", 1, inside="a")], "found a circle"),
    ],
)
def test_what_makes_no_mesh_is_refused(axes: list[MeshAxis], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        solve(*axes, world=4)


def test_open_nested_axis_takes_what_is_left_of_its_own() -> None:
    axes = [MeshAxis("node", 2, inside="data"), MeshAxis("local", None, inside="data")]
    assert solve(*axes, world=8) == {"data": 8, "local": 4, "node": 2}
