"""check_partitioner passes what keeps the laws, and finds each way of breaking one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dsx.plugin import Layer
from dsx.testing import check_partitioner


def even(layers: Sequence[Layer], *, parts: int) -> Sequence[int]:
    """The same number of layers with weights in each part, as far as that goes."""
    weighty = [index for index, layer in enumerate(layers) if layer.parameters] or list(range(len(layers)))
    inner = [weighty[len(weighty) * part // parts] if weighty else 0 for part in range(1, parts)]
    return [0, *inner, len(layers)]


class Even:
    def __call__(self, layers: Sequence[Layer], *, parts: int) -> Sequence[int]:
        return even(layers, parts=parts)


@pytest.mark.parametrize("partitioner", [even, Even, Even()])
def test_a_lawful_partitioner_passes(partitioner: Any) -> None:
    check_partitioner(partitioner)


def changed(change: Callable[[list[int]], Sequence[Any]]) -> Callable[..., Any]:
    return lambda layers, *, parts: change(list(even(layers, parts=parts)))


class Remembers:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, layers: Sequence[Layer], *, parts: int) -> Sequence[int]:
        self.calls += 1
        return even(layers, parts=parts) if self.calls % 2 else [0] * parts + [len(layers)]


def eats(layers: Any, *, parts: int) -> Sequence[int]:
    found = even(layers, parts=parts)
    layers.clear()
    return found


def refuses(layers: Sequence[Layer], *, parts: int) -> Sequence[int]:
    if parts > len(layers):
        raise ValueError("too many parts")
    return even(layers, parts=parts)


def hoards(layers: Sequence[Layer], *, parts: int) -> Sequence[int]:
    return [0] * parts + [len(layers)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(lambda borders: borders[:-1]), r"of no layer in 1 parts: 1 borders, wanted 2"),
        (changed(lambda borders: [1, *borders[1:]]), "the first border is 1"),
        (changed(lambda borders: [*borders[:-1], borders[-1] + 1]), "the last border is 1, wanted 0"),
        (changed(lambda borders: [borders[0], *borders[1:-1][::-1], borders[-1]]), "borders fall"),
        (changed(lambda borders: [float(border) for border in borders]), "is a float, wanted an int"),
        (hoards, "have no layer"),
        (Remembers, "another answer the second time"),
        (eats, "the list of layers was changed"),
        (refuses, "raised ValueError: too many parts"),
    ],
)
def test_each_broken_law_is_found(wrong: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_partitioner(wrong)
