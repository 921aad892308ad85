"""Layers cut into contiguous parts: what each partitioner promises, and answers that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dsx.errors import ConfigError, PluginError
from dsx.partition import cut, layer_of, parameters, uniform
from dsx.plugin import Layer


def layers_of(weights: Sequence[int]) -> list[Layer]:
    return [Layer(f"layers.{index}", "Block", weight) for index, weight in enumerate(weights)]


def sums(weights: Sequence[int], borders: Sequence[int]) -> list[int]:
    return [sum(weights[start:end]) for start, end in pairwise(borders)]


def every_cut(layers: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many layers into parts that may be empty."""
    for chosen in combinations(range(layers + parts - 1), parts - 1):
        inner = tuple(place - index for index, place in enumerate(chosen))
        yield (0, *inner, layers)


@pytest.mark.parametrize(
    ("layers", "parts", "borders"),
    [(6, 3, (0, 2, 4, 6)), (5, 2, (0, 2, 5)), (7, 3, (0, 2, 4, 7)), (2, 3, (0, 0, 1, 2)), (0, 2, (0, 0, 0))],
)
def test_uniform_counts(layers: int, parts: int, borders: tuple[int, ...]) -> None:
    assert cut(uniform, layers_of([9] * layers), parts=parts) == borders


@pytest.mark.parametrize(
    ("weights", "parts", "borders"),
    [
        ([1, 1, 1, 9], 2, (0, 3, 4)),
        ([9, 1, 1, 1], 3, (0, 1, 3, 4)),
        ([5, 0, 0, 5], 2, (0, 3, 4)),  # the first part is as long as it may be
        ([0, 0, 5, 5], 2, (0, 3, 4)),
        ([1, 1, 1, 9, 0], 3, (0, 2, 3, 5)),  # a layer without weights is no part of its own
        ([2, 2], 4, (0, 1, 2, 2, 2)),
        ([0, 0, 0], 3, (0, 1, 2, 3)),
        ([], 2, (0, 0, 0)),
    ],
)
def test_parameters_by_hand(weights: list[int], parts: int, borders: tuple[int, ...]) -> None:
    assert cut(parameters, layers_of(weights), parts=parts) == borders


@given(st.lists(st.integers(0, 9), max_size=7), st.integers(1, 5))
def test_no_cut_has_a_smaller_largest_part(weights: list[int], parts: int) -> None:
    borders = cut(parameters, layers_of(weights), parts=parts)
    least = min(max(sums(weights, other)) for other in every_cut(len(weights), parts))
    assert max(sums(weights, borders)) == least


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 6))
def test_no_part_is_left_with_nothing_while_there_is_enough(weights: list[int], parts: int) -> None:
    borders = cut(parameters, layers_of(weights), parts=parts)
    if sum(weight > 0 for weight in weights) >= parts:
        assert min(sums(weights, borders)) > 0
    if len(weights) >= parts:
        assert all(start < end for start, end in pairwise(borders))
    assert borders == cut(parameters, layers_of(weights), parts=parts)


def test_large_weights_are_exact() -> None:
    weights = [2**61 + 1, 2**61, 2**61 - 1, 1]
    assert cut(parameters, layers_of(weights), parts=3) == (0, 1, 2, 4)


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ([0, 4], "2 borders"),
        ([1, 2, 4], "the first border is 1"),
        ([0, 2, 5], "the last border is 5"),
        ([0, 5, 4], "border 2 falls from 5 to 4"),
        ([0, -1, 4], "border 1 falls from 0 to -1"),
        ([0, 2.5, 4], "TypeError"),
        (None, "TypeError"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_name(answer: Any, wrong: str) -> None:
    with pytest.raises(PluginError, match=rf"(?s)'halves' .* 4 layers into 2 parts.*{wrong}.*wanted 3.*what to do"):
        cut(lambda layers, *, parts: answer, layers_of([1] * 4), parts=2, name="halves")


def test_a_partitioner_that_fails_is_named_and_a_clear_error_of_its_own_passes() -> None:
    def broken(layers: Sequence[Layer], *, parts: int) -> tuple[int, ...]:
        raise KeyError("cost")

    def careful(layers: Sequence[Layer], *, parts: int) -> tuple[int, ...]:
        raise ConfigError("no layer was measured")

    with pytest.raises(PluginError, match="broken.*KeyError: 'cost'"):
        cut(broken, layers_of([1]), parts=1)
    with pytest.raises(ConfigError, match="no layer was measured"):
        cut(careful, layers_of([1]), parts=1)
    with pytest.raises(ValueError, match="parts is 0"):
        cut(uniform, [], parts=0)


def test_a_layer_tells_its_name_kind_and_parameters() -> None:
    assert layer_of("head", nn.Linear(3, 2)) == Layer("head", "Linear", 8)
