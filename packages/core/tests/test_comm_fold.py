"""The sum of the ranks' parts: order, width, aliases."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsx.comm.fold import BLOCK, fold

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]


@given(
    numel=st.sampled_from([0, 1, 7, 1000]),
    ranks=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    own=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_sum_is_in_rank_order_wherever_it_is_written(
    numel: int, ranks: int, dtype: torch.dtype, own: int, seed: int
) -> None:
    torch.manual_seed(seed)
    parts = [(torch.randn(numel) * 8).to(dtype) for _ in range(ranks)]
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    wanted = parts[0].to(wide)
    for part in parts[1:]:
        wanted = wanted + part.to(wide)
    out = parts[own % ranks]
    fold(parts, out, op="sum")
    assert torch.equal(out, wanted.to(dtype))


def test_narrow_parts_are_rounded_once() -> None:
    parts = [torch.full((3,), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)]
    out = torch.empty(3, dtype=torch.bfloat16)
    fold(parts, out, op="sum")
    assert out.tolist() == [258.0] * 3  # step by step in bf16 it would stay at 256


def test_a_wider_output_keeps_the_whole_sum() -> None:
    parts = [torch.full((BLOCK + 1,), value, dtype=torch.bfloat16) for value in (256.0, 1.0)]
    out = torch.empty(BLOCK + 1)
    fold(parts, out, op="sum")
    assert torch.equal(out, torch.full((BLOCK + 1,), 257.0))


@pytest.mark.parametrize(("op", "wanted"), [("max", [3.0, 9.0]), ("min", [1.0, 2.0])])
def test_extremes(op: str, wanted: list[float]) -> None:
    parts = [torch.tensor([3.0, 2.0]), torch.tensor([1.0, 9.0]), torch.tensor([2.0, 5.0])]
    fold(parts, parts[2], op=op)
    assert parts[2].tolist() == wanted
