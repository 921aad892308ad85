"""Axes and groups as arithmetic."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import PlanError
from dsx.mesh.layout import AxisLayout
from dsx.plugin.types import MeshAxis

AXES = ("pipe", "data", "sequence", "tensor")
degrees = st.tuples(*(st.integers(1, 4) for _ in AXES))


def _layout(*given: int, nested: int = 1) -> AxisLayout:
    outer = tuple(MeshAxis(name, degree) for name, degree in zip(AXES, given, strict=True))
    return AxisLayout((*outer, MeshAxis("expert", nested, inside="data")))


@given(degrees, st.sets(st.sampled_from(AXES)))
def test_groups_tile_the_world(sizes: tuple[int, ...], along: set[str]) -> None:
    layout = _layout(*sizes)
    groups = layout.groups(sorted(along))
    assert sorted(rank for group in groups for rank in group) == list(range(prod(sizes)))
    assert {len(group) for group in groups} == {prod(layout.degree(axis) for axis in along)}
    for group in groups:
        for axis in set(AXES) - along:
            assert len({layout.coordinate(rank, axis) for rank in group}) == 1


@given(degrees)
def test_coordinates_name_each_rank_once(sizes: tuple[int, ...]) -> None:
    layout = _layout(*sizes)
    places = [tuple(layout.coordinate(rank, axis) for axis in AXES) for rank in range(layout.size)]
    assert places == sorted(set(places))  # row-major: the last axis varies fastest


def test_an_axis_inside_another() -> None:
    layout = _layout(1, 6, 1, 2, nested=2)
    assert layout.degree("expert") == 2
    assert layout.degree("expert_data") == 3
    assert layout.group_of(0, ["expert"]) == (0, 2)
    assert layout.group_of(0, ["expert_data"]) == (0, 4, 8)
    assert layout.group_of(5, ["expert_data", "tensor"]) == (0, 1, 4, 5, 8, 9)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_expert_and_its_complement_make_data(experts: int, copies: int, tensor: int) -> None:
    layout = _layout(1, experts * copies, 1, tensor, nested=experts)
    assert layout.groups(["expert", "expert_data"]) == layout.groups(["data"])
    for rank in range(layout.size):
        both = set(layout.group_of(rank, ["expert"])) & set(layout.group_of(rank, ["expert_data"]))
        assert both == {rank}


def test_no_axes_leave_each_rank_alone() -> None:
    assert _layout(1, 2, 1, 1).groups([]) == ((0,), (1,))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((MeshAxis("data", 2), MeshAxis("data", 2)), "'data' is given twice"),
        ((MeshAxis("data", None),), "degree None; wanted a number from 1"),
        ((MeshAxis("data", 0),), "degree 0; wanted a number from 1"),
        ((MeshAxis("data", 4), MeshAxis("expert", 3, inside="data")), "does not divide 'data' of degree 4"),
        ((MeshAxis("data", 4), MeshAxis("expert", 2, inside="dat")), "is inside 'dat', which is no outer axis"),
    ],
)
def test_axes_that_make_no_mesh(axes: tuple[MeshAxis, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        AxisLayout(axes)


def test_unknown_axis_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="no axis 'tenser' .did you mean 'tensor'"):
        _layout(1, 2, 1, 1).degree("tenser")


def test_two_ways_to_divide_one_axis_are_not_mixed() -> None:
    axes = (MeshAxis("data", 4), MeshAxis("expert", 2, inside="data"), MeshAxis("shard", 4, inside="data"))
    layout = AxisLayout(axes)
    assert layout.group_of(0, ["shard"]) == (0, 1, 2, 3)
    with pytest.raises(PlanError, match="ask for one of them"):
        layout.groups(["expert", "shard"])
