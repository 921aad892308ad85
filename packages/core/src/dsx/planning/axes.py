"""The degrees of the mesh axes: their product is the number of ranks, and ``data`` takes what the others leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from dsx.errors import PlanError
from dsx.plugin.manager import Tagged
from dsx.plugin.types import MeshAxis

DATA = "data"
ORDER = ("pipe", "data", "sequence", "tensor")
"""Outermost first: neighbours in ``tensor`` talk most, so they are neighbours in rank. Other axes come before these."""


def solve_axes(
    named: Sequence[Tagged[MeshAxis]], *, world_size: int, provider: Callable[[str], str] = repr
) -> tuple[MeshAxis, ...]:
    """Every axis with its degree, outermost first, each nested axis after the one that it divides.

    provider: how a plugin is named in full. Raises PlanError where an axis is named twice, two axes want what is left,
    or degrees do not fit the world.
    """
    _refuse_doubles(named, provider)
    axes = [item.value for item in named]
    who = {item.value.name: f"of plugin {provider(item.plugin)}" for item in named}
    if all(axis.name != DATA for axis in axes):
        axes.append(MeshAxis(DATA, None, why="what the other axes leave"))
    known = {axis.name for axis in axes}
    for axis in axes:
        if axis.inside is not None and axis.inside not in known:
            raise PlanError(
                f"mesh axis {axis.name!r} {who[axis.name]} lies inside {axis.inside!r}, which is not an axis: found "
                f"{', '.join(sorted(known))}, wanted {axis.inside!r} among them ({axis.why})\n"
                f"    what to do: install and switch on the plugin that names axis {axis.inside!r}, or switch this off"
            )
        if axis.degree is not None and axis.degree < 1:
            raise PlanError(
                f"mesh axis {axis.name!r} {who[axis.name]} has degree {axis.degree}, wanted at least 1 ({axis.why})\n"
                f"    what to do: correct the degree where the configuration gives it, else report it to the authors"
            )
    outer = sorted((axis for axis in axes if axis.inside is None), key=_place)
    solved: list[MeshAxis] = []
    for axis in _filled(outer, total=world_size, whole=f"{world_size} ranks"):
        solved += [axis, *_nested(axis, axes)]
    if len(solved) != len(axes):
        lost = sorted(known - {axis.name for axis in solved})
        said = ", ".join(f"{name} {who[name]}" for name in lost)
        raise PlanError(
            f"mesh axes {said} lie inside one another: found a circle, wanted an outermost axis\n"
            f"    what to do: switch one of them off, and report it to the authors"
        )
    return tuple(solved)


def _refuse_doubles(named: Sequence[Tagged[MeshAxis]], provider: Callable[[str], str]) -> None:
    by_name: dict[str, list[Tagged[MeshAxis]]] = {}
    for item in named:
        by_name.setdefault(item.value.name, []).append(item)
    for name, items in by_name.items():
        if len(items) > 1:
            who = " and ".join(
                f"{provider(item.plugin)} (degree {item.value.degree}, {item.value.why})" for item in items
            )
            raise PlanError(f"mesh axis {name!r} is named by {who}: wanted one owner\n    what to do: turn one off")


def _place(axis: MeshAxis) -> tuple[int, str]:
    return (ORDER.index(axis.name) if axis.name in ORDER else -1, axis.name)


def _nested(parent: MeshAxis, axes: Sequence[MeshAxis]) -> list[MeshAxis]:
    children = sorted((axis for axis in axes if axis.inside == parent.name), key=_place)
    assert parent.degree is not None, "an axis is solved before those inside it"
    solved: list[MeshAxis] = []
    whole = f"the {parent.degree} ranks of axis {parent.name!r}"
    for axis in _filled(children, total=parent.degree, whole=whole, divide=True):
        solved += [axis, *_nested(axis, axes)]
    return solved


def _filled(axes: Sequence[MeshAxis], *, total: int, whole: str, divide: bool = False) -> list[MeshAxis]:
    """The axes with the open degree filled in. With ``divide`` they may leave a rest; without, they use all of it."""
    open_axes = [axis for axis in axes if axis.degree is None]
    if len(open_axes) > 1:
        names = " and ".join(repr(axis.name) for axis in open_axes)
        raise PlanError(f"mesh axes {names} all want what is left of {whole}: wanted one such axis")
    fixed = math.prod(axis.degree for axis in axes if axis.degree is not None)
    fits = total % fixed == 0 if open_axes or divide else total == fixed
    if not fits:
        degrees = " × ".join(f"{axis.name} {axis.degree}" for axis in axes if axis.degree is not None)
        reasons = "; ".join(f"{axis.name}: {axis.why}" for axis in axes if axis.degree is not None and axis.why)
        wanted = "a divisor" if open_axes or divide else "exactly that many"
        raise PlanError(
            f"mesh axes do not fit {whole}: found {degrees} = {fixed}, wanted {wanted} ({reasons})\n"
            f"    nearest legal: {_nearest(fixed, total, divide=bool(open_axes) or divide)}"
        )
    return [axis if axis.degree is not None else replace(axis, degree=total // fixed) for axis in axes]


def _nearest(fixed: int, total: int, *, divide: bool) -> str:
    if not divide:
        return f"degrees whose product is {total}, or a run with {fixed} ranks"
    below = max(degree for degree in range(1, min(fixed, total) + 1) if total % degree == 0)
    return f"degrees whose product is {below}, or a number of ranks that is a multiple of {fixed}"
