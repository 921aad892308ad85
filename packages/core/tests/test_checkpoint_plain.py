"""Plain data comes back equal and of the same types; anything else is refused by its place."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.checkpoint import plain
from dsx.errors import CheckpointError

keys = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.sampled_from(["$tuple", "$", "a/b"]))
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.binary(max_size=8)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=12,
)


def round_trip(value: Any) -> Any:
    return plain.loads(plain.dumps(value, where="x"), where="x")


@given(values)
@settings(max_examples=200, deadline=None)
def test_round_trip(value: Any) -> None:
    assert repr(round_trip(value)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("-inf"),
        2**200,
        Counter({3: 1}),
        {1, 2},
        torch.float16,
        torch.device("cpu"),
        torch.Size([2, 3]),
    ],
)
def test_special_values(value: Any) -> None:
    assert round_trip(value) == value


def test_nan_and_numpy_numbers_become_plain() -> None:
    assert repr(round_trip([float("nan"), np.float64(0.5), np.int32(3)])) == "[nan, 0.5, 3]"
    assert round_trip(OrderedDict(a=1)) == {"a": 1}


def test_the_text_is_strict_json() -> None:
    text = plain.dumps({"a": float("nan"), 1: (2,)}, where="x")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class Colour(Enum):
    RED = 1


class Thing:
    pass


@pytest.mark.parametrize("value", [Colour.RED, Thing(), len, Thing])
def test_classes_are_refused_by_their_place(value: Any) -> None:
    """B41: nothing in a checkpoint needs unpickling."""
    with pytest.raises(CheckpointError, match=r"client/deep/1 is a .*would need pickling"):
        plain.dumps({"deep": [0, value]}, where="client")


def test_merge_is_a_union_where_the_first_prevails() -> None:
    assert plain.merge({"a": {"x": 1}, "b": 2}, {"a": {"y": 3}, "b": 9, "c": 4}) == {
        "a": {"x": 1, "y": 3},
        "b": 2,
        "c": 4,
    }


def test_unreadable_text_is_a_checkpoint_error() -> None:
    for text in ('{"$nonsense": 1}', "{", '{"$dtype": "nn"}'):
        with pytest.raises(CheckpointError, match="state.json cannot be read"):
            plain.loads(text, where="state.json")
