"""What a stage costs: bytes on the wire in an update and bytes of state on a rank, as arithmetic says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from zero_models import engine_of, settings

import dsx
from dsx.testing.ranks import run_ranks

WIDE = 48
"""Divisible by 2 and 3 ranks and by 16 bytes, so that no padding blurs the count."""


OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(4))
        self.last = nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.last(x)


def _update(engine: dsx.Engine) -> None:
    inputs = torch.randn(4, WIDE, requires_grad=True)  # so that backward reads the first weight too
    engine.backward(engine(inputs).float().pow(2).mean())
    engine.step()


def _moved(stage: int, precision: dict[str, Any], zero: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Bytes that this rank sent in each of three updates: gathers, reduce-scatters, all-reduces."""
    torch.manual_seed(0)
    rows = []
    with engine_of(Wide(), settings(stage, zero=zero, **precision)) as engine:
        for _ in range(3):
            engine.data_group.account.reset()
            _update(engine)
            costs = engine.data_group.account.by_op
            rows.append(tuple(costs[op].bytes if op in costs else 0 for op in OPERATIONS))
    return rows


def _wire() -> dict[str, list[tuple[int, int, int]]]:
    never = {"stage3_max_reuse_distance": 0, "reduce_bucket_size": 10**6}
    bf16 = {"bf16": {"enabled": True}}
    return {
        **{f"fp32 {stage}": _moved(stage, {}, never) for stage in (1, 2, 3)},
        **{f"bf16 {stage}": _moved(stage, bf16, never) for stage in (1, 2, 3)},
        "kept 3": _moved(3, {}, {"stage3_max_reuse_distance": 10**9}),
        "fp32 0": _moved(0, {}, never),
    }


def test_each_stage_moves_what_it_should_in_an_update() -> None:
    """Stages 1 and 2: parameters twice; stage 3: three times; each rank sends (N-1)/N of them."""
    elements = 5 * (WIDE * WIDE + WIDE)
    for size in (2, 3):
        for found in run_ranks(_wire, world=size):
            share = (size - 1) / size
            # Agreements travel in a group of their own.
            assert all(row[2] == 0 for case, rows in found.items() if case != "fp32 0" for row in rows)
            moved = {case: [row[:2] for row in rows] for case, rows in found.items()}
            for stage in (1, 2):
                assert moved[f"fp32 {stage}"] == [(4 * elements * share, 4 * elements * share)] * 3
                # Weights travel in bf16, gradients in the fp32 in which they are summed.
                assert moved[f"bf16 {stage}"] == [(2 * elements * share, 4 * elements * share)] * 3
            first, *later = moved["fp32 3"]
            assert first == (4 * 2 * elements * share, 4 * elements * share)
            assert later == [first] * 2
            assert moved["bf16 3"][0] == (2 * 2 * elements * share, 4 * elements * share)
            # With room to keep them, parameters are gathered once an update.
            assert moved["kept 3"][1:] == [(4 * elements * share, 4 * elements * share)] * 2
            assert found["fp32 0"] == [(0, 0, 2 * 4 * elements * share)] * 3


def _state(optimizer: str) -> list[tuple[str, list[int], list[int]]]:
    rows = []
    for precision in ("fp32", "bf16"):
        for stage in range(4):
            more: dict[str, Any] = {"bf16": {"enabled": True}} if precision == "bf16" else {}
            more["optimizer"] = {"type": optimizer, "params": {"lr": 1e-3}}
            torch.manual_seed(0)
            with engine_of(Wide(), settings(stage, zero={"reduce_bucket_size": 10**6}, **more)) as engine:
                _update(engine)
                engine.backward(engine(torch.randn(4, WIDE)).float().pow(2).mean())
                engine.grad_norm()  # completes the reduction: gradients rest as the stage keeps them
                predicted, counted = engine.state_bytes()
                fields = ("parameters", "gradients", "optimizer", "buffers", "total")
                rows.append(
                    (f"{precision} {stage}", *([getattr(which, f) for f in fields] for which in (predicted, counted)))
                )
    return rows


def _all_states() -> list[list[tuple[str, list[int], list[int]]]]:
    return [_state(name) for name in ("Adam", "SGD", "torch.AdamW")]


def _expected(case: str, size: int, moments: int) -> list[int]:
    """Bytes by the table of ZeRO: weights, gradients, masters with moments."""
    precision, stage = case.split()
    elements = 5 * (WIDE * WIDE + WIDE)
    weight = 2 if precision == "bf16" else 4
    shard = [elements // size if int(stage) >= first else elements for first in (3, 2, 1)]
    state = 4 * moments + (4 if precision == "bf16" else 0)
    return [weight * shard[0], 4 * shard[1], state * shard[2]]


def test_state_bytes_are_those_of_the_table_predicted_and_counted() -> None:
    """1 % at most between prediction, count and the paper's arithmetic (Rajbhandari et al., 2020), on 1 to 3 ranks."""
    for size in (1, 2, 3):
        for by_optimizer in run_ranks(_all_states, world=size):
            for moments, rows in zip((2, 0, 2), by_optimizer, strict=True):
                for case, predicted, counted in rows:
                    wanted = _expected(case, size, moments)
                    assert predicted[:3] == wanted, case
                    assert predicted[4] == sum(predicted[:4])
                    for one, other in zip(predicted, counted, strict=True):
                        assert abs(one - other) <= 0.01 * one, (case, size, predicted, counted)
