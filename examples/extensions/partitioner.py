"""A partitioner: cuts a list of layers into contiguous parts. This one makes all of them as even as they can be.

Turned on by ``"activation_checkpointing": {"modules": ["Block"], "number_checkpoints": 4, "partitioner": "even"}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from dsx.plugin import PARTITIONER, Component, Layer, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-partitioner", api=1, summary="parts as even as they can be")


def even(layers: Sequence[Layer], *, parts: int) -> tuple[int, ...]:
    """Borders with the least sum of squared sums of parameters; the earliest ones where several have it."""
    sums = [0, *accumulate(layer.parameters for layer in layers)]
    ends = range(len(sums))

    def cost(start: int, end: int) -> int:
        return (sums[end] - sums[start]) ** 2

    # For each number of layers: the least cost of cutting them into the parts so far, and the borders.
    best: list[tuple[int, tuple[int, ...]]] = [(cost(0, end), (0, end)) for end in ends]
    for _ in range(parts - 1):
        best = [
            min((best[start][0] + cost(start, end), (*best[start][1], end)) for start in range(end + 1)) for end in ends
        ]
    return best[-1][1]


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The partitioner, under its name."""
    yield Component(PARTITIONER, "even", load=lambda: even, summary="the sum of squares is least")
