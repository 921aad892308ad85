"""A flat range is at most 2d - 1 boxes that tile it, and torch.distributed.checkpoint moves them between any cuts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.checkpoint import Boxes
from dsx.checkpoint.boxes import chunks_of
from dsx.checkpoint.carrier import Carrier
from dsx.checkpoint.ranges import boxes_of_range

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def shape_and_range(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(shapes)
    start = draw(st.integers(0, math.prod(shape)))
    return shape, start, draw(st.integers(start, math.prod(shape)))


@given(shape_and_range())
@settings(max_examples=300, deadline=None)
def test_boxes_tile_exactly_the_range_in_order(case: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = case
    boxes = boxes_of_range(shape, start=start, stop=stop)
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    flat = torch.arange(math.prod(shape)).reshape(shape)
    seen = []
    for box in boxes:
        index = tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))
        elements = flat[index].flatten().tolist()
        assert elements == list(range(box.start, box.start + box.numel))
        seen += elements
    assert seen == list(range(start, stop))


@pytest.mark.parametrize(
    ("shape", "start", "stop", "count"),
    [((), 0, 1, 1), ((), 0, 0, 0), ((0, 3), 0, 0, 0), ((1, 1, 1), 0, 1, 1), ((4, 4, 4), 5, 59, 5), ((7,), 2, 5, 1)],
)
def test_edge_shapes(shape: tuple[int, ...], start: int, stop: int, count: int) -> None:
    assert len(boxes_of_range(shape, start=start, stop=stop)) == count


def test_range_outside_the_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"range \[3, 7\)"):
        boxes_of_range((2, 3), start=3, stop=7)
    with pytest.raises(ValueError, match="leaves the 6 elements"):
        Boxes("w", (2, 3), torch.float32, ((5, torch.zeros(2)),))


def test_chunks_are_views_that_fill_the_piece() -> None:
    piece = torch.zeros(4)
    for offsets, sizes, view in chunks_of(Boxes("w", (3, 3), torch.float32, ((1, piece),))):
        view.copy_(torch.arange(9.0).reshape(3, 3)[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))])
    assert piece.tolist() == [1, 2, 3, 4]


def test_whole_tensor_of_any_strides_is_one_chunk() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    ((offsets, sizes, view),) = chunks_of(Boxes.whole("w", tensor))
    assert (offsets, sizes) == ((0, 0), (3, 2))
    assert torch.equal(view, tensor)
    with pytest.raises(ValueError, match="not contiguous"):
        Boxes("w", (4, 2), torch.float32, ((0, tensor),))


def test_wrong_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a piece is torch\.float16"):
        Boxes("w", (2,), torch.float32, ((0, torch.zeros(2, dtype=torch.float16)),))


def test_carrier_has_the_global_shape_and_no_elements() -> None:
    carrier = Carrier(Boxes("w", (5, 7), torch.bfloat16, ()))
    assert carrier.shape == (5, 7)
    assert carrier.dtype == torch.bfloat16
    assert carrier.__create_chunk_list__() == []
    with pytest.raises(TypeError, match="carrier"):
        carrier.sum()


@pytest.mark.parametrize("held", [(), ((0, torch.zeros(0, 3)),)])
def test_tensor_without_elements_is_still_named(held: tuple[tuple[int, torch.Tensor], ...]) -> None:
    items = Carrier(Boxes("w", (0, 3), torch.float32, held)).__create_write_items__("w", None)
    assert [tuple(item.tensor_data.chunk.sizes) for item in items] == [(0, 3)]
