"""Partitioner conformance: contiguous parts that cover all layers, whatever the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from dsx.plugin.types import Layer
from dsx.testing.verdict import hold, trying


def check_partitioner(partitioner: Any) -> None:
    """Check a partitioner (class, instance or function) over models and numbers of parts. Raises AssertionError.

    Laws: ``parts + 1`` whole numbers from 0 to the number of layers, never falling; also with one part, more parts
    than layers, layers without weights and no layer at all; the same answer twice, for equal layers in another list;
    nothing it was given is changed; no part is empty while at least as many layers as parts have weights.
    """
    cut = partitioner() if isinstance(partitioner, type) else partitioner
    name = getattr(partitioner, "__name__", type(partitioner).__name__)
    for title, layers in _models():
        for parts in sorted({1, 2, 3, 4, 7, max(1, len(layers)), len(layers) + 2}):
            what = f"{name} of {title} in {parts} parts"
            borders = _borders(cut, layers, parts, what)
            hold(_borders(cut, list(layers), parts, what) == borders, f"{what}: another answer the second time")
            _check(borders, layers, parts, what)


def _borders(cut: Any, layers: Sequence[Layer], parts: int, what: str) -> list[int]:
    given = list(layers)
    with trying(what):
        found = list(cut(given, parts=parts))
    hold(given == list(layers), f"{what}: the list of layers was changed")
    for border in found:
        hold(type(border) is int, f"{what}: border {border!r} is a {type(border).__name__}, wanted an int")
    return found


def _check(borders: Sequence[int], layers: Sequence[Layer], parts: int, what: str) -> None:
    hold(len(borders) == parts + 1, f"{what}: {len(borders)} borders, wanted {parts + 1}: {borders}")
    hold(borders[0] == 0, f"{what}: the first border is {borders[0]}, wanted 0: {borders}")
    hold(borders[-1] == len(layers), f"{what}: the last border is {borders[-1]}, wanted {len(layers)}: {borders}")
    hold(all(a <= b for a, b in pairwise(borders)), f"{what}: borders fall: {borders}")
    weighty = sum(layer.parameters > 0 for layer in layers)
    if parts <= weighty:
        empty = [part for part, (a, b) in enumerate(pairwise(borders)) if a == b]
        hold(not empty, f"{what}: parts {empty} have no layer, and {weighty} layers have weights: {borders}")


def _models() -> Iterator[tuple[str, list[Layer]]]:
    yield "no layer", []
    yield "one layer", _layers([5])
    yield "equal layers", _layers([8] * 12)
    yield "a heavy first layer", _layers([1000, *[1] * 9])
    yield "a heavy last layer", _layers([*[1] * 9, 1000])
    yield "a heavy middle layer", _layers([1, 1, 1, 10**12, 1, 1, 1, 1])
    yield "layers without weights", _layers([0] * 6)
    yield "weights here and there", _layers([0, 9, 0, 0, 7, 5, 0, 3, 0, 11, 0])
    yield "growing layers", _layers(list(range(1, 24)))
    yield "measured layers", _layers([4] * 9, costs=[0.1, 0.4, 0.1, 0.2, 0.9, 0.1, 0.1, 0.3, 0.2])
    yield "layers measured as nothing", _layers([4] * 5, costs=[0.0] * 5)


def _layers(sizes: Sequence[int], *, costs: Sequence[float] | None = None) -> list[Layer]:
    kinds = ("Embedding", "Block", "Head")
    last = len(sizes) - 1
    return [
        Layer(
            f"layers.{number}",
            kinds[0 if number == 0 else 2 if number == last else 1],
            size,
            None if costs is None else costs[number],
        )
        for number, size in enumerate(sizes)
    ]
