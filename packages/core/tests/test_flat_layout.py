"""Layouts are a bijection between the elements of named tensors and the ranks' ranges, whatever sizes and degree."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsx.flat.layout import Layout, Ownership, chunk, make_layout, round_up

Shapes = list[tuple[int, ...]]

SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), max_size=9)
DEGREES = st.integers(1, 13)
ALIGN = st.sampled_from([1, 2, 4, 8])
OWNERSHIP = st.sampled_from(["element", "parameter"])


def layout_of(shapes: Shapes, degree: int, align: int, ownership: Ownership) -> Layout:
    names = {f"p{index}": shape for index, shape in enumerate(shapes)}
    return make_layout(names, degree=degree, ownership=ownership, align=align)


@given(SHAPES, DEGREES, ALIGN, OWNERSHIP)
@example([], 3, 4, "element")
@example([()], 5, 8, "element")
@example([()], 5, 8, "parameter")
@example([(0, 3)], 2, 4, "element")
@example([(0, 3)], 2, 4, "parameter")
@example([(2, 3), (0,), (1,), (7, 7)], 13, 1, "parameter")
def test_every_element_has_one_owner(shapes: Shapes, degree: int, align: int, ownership: Ownership) -> None:
    layout = layout_of(shapes, degree, align, ownership)
    owners: Counter[tuple[str, int]] = Counter()
    named: Counter[str] = Counter()
    for rank in range(degree):
        start, _ = layout.range(rank)
        for span in layout.spans(rank):
            slot = layout.by_name[span.name]
            named[span.name] += 1
            assert 0 <= span.offset <= span.offset + span.numel <= layout.shard_numel
            if span.numel:
                assert start + span.offset == slot.offset + span.start, "a span lies where its slot says"
            owners.update((span.name, element) for element in range(span.start, span.stop))
    every = {(f"p{i}", element) for i, shape in enumerate(shapes) for element in range(math.prod(shape))}
    assert owners.keys() == every
    assert set(owners.values()) <= {1}
    assert all(named[name] >= 1 for name in layout.by_name), "an empty parameter is held by somebody too"
    assert all(named[slot.name] == 1 for slot in layout.slots if slot.numel == 0)


@given(SHAPES, DEGREES, ALIGN, OWNERSHIP)
def test_ranges_tile_the_buffer_and_slots_do_not_meet(
    shapes: Shapes, degree: int, align: int, ownership: Ownership
) -> None:
    layout = layout_of(shapes, degree, align, ownership)
    borders = [layout.range(rank) for rank in range(degree)]
    assert borders[0][0] == 0
    assert borders[-1][1] == layout.numel == layout.shard_numel * degree
    assert all(before[1] == after[0] for before, after in pairwise(borders))
    assert layout.shard_numel % align == 0
    filled: Counter[int] = Counter()
    for slot in layout.slots:
        assert slot.offset % align == 0
        assert slot.stop <= layout.numel
        filled.update(range(slot.offset, slot.stop))
    assert set(filled.values()) <= {1}


@given(SHAPES, DEGREES, ALIGN, OWNERSHIP)
def test_names_keep_shape_and_order(shapes: Shapes, degree: int, align: int, ownership: Ownership) -> None:
    layout = layout_of(shapes, degree, align, ownership)
    assert [(slot.name, slot.shape) for slot in layout.slots] == [(f"p{i}", shape) for i, shape in enumerate(shapes)]
    buffer = [""] * layout.numel
    for slot in layout.slots:
        buffer[slot.offset : slot.stop] = [slot.name] * slot.numel
    for rank in range(degree):
        start, stop = layout.range(rank)
        shard = buffer[start:stop]
        for span in layout.spans(rank):
            assert set(shard[span.offset : span.offset + span.numel]) <= {span.name}


@given(SHAPES, DEGREES, ALIGN)
def test_by_parameter_none_is_cut_and_the_fullest_shard_is_not_twice_too_full(
    shapes: Shapes, degree: int, align: int
) -> None:
    layout = layout_of(shapes, degree, align, "parameter")
    spans = [span for rank in range(degree) for span in layout.spans(rank)]
    assert all(span.numel == layout.by_name[span.name].numel for span in spans)
    assert len(spans) == len(shapes)
    sizes = [round_up(math.prod(shape), align) for shape in shapes]
    # Graham's bound: largest first is at most 4/3 of the best; the best is at least the mean, and the largest one.
    best = max([sum(sizes) / degree, *sizes], default=0)
    assert layout.shard_numel <= 2 * best


@given(SHAPES, DEGREES, ALIGN)
def test_by_element_padding_is_less_than_alignment_asks(shapes: Shapes, degree: int, align: int) -> None:
    layout = layout_of(shapes, degree, align, "element")
    elements = sum(math.prod(shape) for shape in shapes)
    assert elements <= layout.numel < elements + align * (len(shapes) + degree) + 1


def test_more_ranks_than_elements_leaves_the_last_ones_empty() -> None:
    layout = layout_of([(3,)], 5, 1, "element")
    assert [[(span.start, span.stop) for span in layout.spans(rank)] for rank in range(5)] == [
        [(0, 1)], [(1, 2)], [(2, 3)], [], [],
    ]  # fmt: skip
    whole = layout_of([(3,)], 5, 1, "parameter")
    assert [len(whole.spans(rank)) for rank in range(5)] == [1, 0, 0, 0, 0]


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 40))
def test_chunks_keep_order_and_limit(sizes: list[int], limit: int) -> None:
    runs = chunk(sizes, limit=limit)
    assert [index for run in runs for index in run] == list(range(len(sizes)))
    assert all(run for run in runs)
    assert all(sum(sizes[index] for index in run) <= limit or len(run) == 1 for run in runs)


@pytest.mark.parametrize(("value", "multiple", "wanted"), [(0, 4, 0), (1, 4, 4), (4, 4, 4), (5, 4, 8), (7, 1, 7)])
def test_rounding_up(value: int, multiple: int, wanted: int) -> None:
    assert round_up(value, multiple) == wanted
