"""Which ranks stand together along which axes. Pure arithmetic over the whole world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from dsx.errors import PlanError, did_you_mean
from dsx.plugin.types import MeshAxis


@dataclass(frozen=True)
class AxisLayout:
    """Ranks in row-major order over the outer axes: the last axis varies fastest.

    An axis inside another divides it: ``expert`` of degree 2 inside ``data`` of degree 6 makes ``expert`` (2 ranks that
    are neighbours along data) and its complement ``expert_data`` (3 ranks). Several axes may divide the same axis,
    each in its own way.
    """

    axes: tuple[MeshAxis, ...]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"mesh axis '{name}' is given twice; give each axis once")
        for axis in self.axes:
            if axis.degree is None or axis.degree < 1:
                raise PlanError(f"mesh axis '{axis.name}' has degree {axis.degree}; wanted a number from 1")
            if axis.inside is not None:
                self._check_nested(axis)

    def _check_nested(self, axis: MeshAxis) -> None:
        outer = [a for a in self.axes if a.name == axis.inside and a.inside is None]
        if not outer:
            raise PlanError(f"mesh axis '{axis.name}' is inside '{axis.inside}', which is no outer axis of this mesh")
        if _degree(outer[0]) % _degree(axis):
            raise PlanError(
                f"mesh axis '{axis.name}' of degree {axis.degree} does not divide '{axis.inside}' of degree "
                f"{outer[0].degree}; use a divisor of it"
            )

    @cached_property
    def outer(self) -> dict[str, int]:
        """Degrees of the outer axes, slowest first."""
        return {axis.name: _degree(axis) for axis in self.axes if axis.inside is None}

    @cached_property
    def nested(self) -> dict[str, tuple[str, int, int]]:
        """Nested axes and their complements: name -> (outer axis, degree, stride along it)."""
        found: dict[str, tuple[str, int, int]] = {}
        for axis in self.axes:
            if axis.inside is not None:
                degree = _degree(axis)
                found[axis.name] = (axis.inside, degree, 1)
                found[f"{axis.name}_{axis.inside}"] = (axis.inside, self.outer[axis.inside] // degree, degree)
        return found

    @property
    def size(self) -> int:
        """Ranks in the world."""
        return prod(self.outer.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Every axis that can be asked for."""
        return (*self.outer, *self.nested)

    def degree(self, axis: str) -> int:
        """Ranks along an axis; an axis that this mesh has not is refused."""
        self._known(axis)
        return self.outer[axis] if axis in self.outer else self.nested[axis][1]

    def coordinate(self, rank: int, axis: str) -> int:
        """The place of a rank along an axis."""
        self._known(axis)
        if axis in self.nested:
            outer, degree, stride = self.nested[axis]
            return self.coordinate(rank, outer) // stride % degree
        faster = list(self.outer).index(axis) + 1
        return rank // prod(list(self.outer.values())[faster:]) % self.outer[axis]

    def groups(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The world cut into groups of ranks that differ only along these axes; ordered by first rank."""
        fixed = self._fixed(axes)
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            found.setdefault(tuple(self.coordinate(rank, axis) for axis in fixed), []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    def group_of(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The group that a rank belongs to."""
        return next(ranks for ranks in self.groups(axes) if rank in ranks)

    def _fixed(self, axes: Sequence[str]) -> list[str]:
        """The axes along which the members of a group agree."""
        for axis in axes:
            self._known(axis)
        fixed = []
        for outer in self.outer:
            inner = {axis for axis in axes if axis in self.nested and self.nested[axis][0] == outer}
            if outer in axes:
                continue
            if not inner:
                fixed.append(outer)
            elif len(inner) == 1:
                fixed.append(self._complement(inner.pop()))
            elif {self._complement(axis) for axis in inner} != inner:
                raise PlanError(
                    f"axes {', '.join(sorted(inner))} divide '{outer}' each in its way; ask for one of them"
                )
        return fixed

    def _complement(self, axis: str) -> str:
        outer = self.nested[axis][0]
        suffix = f"_{outer}"
        if axis.endswith(suffix) and axis.removesuffix(suffix) in self.nested:
            return axis.removesuffix(suffix)
        return f"{axis}{suffix}"

    def _known(self, axis: str) -> None:
        if axis not in self.outer and axis not in self.nested:
            known = ", ".join(self.names)
            raise PlanError(f"this mesh has no axis '{axis}'{did_you_mean(axis, self.names)}; it has {known}")


def _degree(axis: MeshAxis) -> int:
    assert axis.degree is not None, "degrees are checked when the layout is made"
    return axis.degree
