"""The section zero_optimization: old spellings, automatic bucket sizes with reasons, and checks that users ask for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_helpers import config, engine_of

from dsx.config.explain import explain
from dsx.errors import CommError, ConfigError, EngineError
from dsx.planning.make import make_plan
from dsx.plugin.types import Facts, World
from dsx.testing.ranks import run_ranks
from dsx_zero.config import ZeroConfig
from dsx_zero.policy import BUCKETS, LARGEST_BUCKET, SMALLEST_BUCKET
from dsx_zero.trace import Trace

ONE = {"train_micro_batch_size_per_gpu": 1}


@pytest.mark.parametrize(
    ("written", "stage"),
    [(True, 1), (False, 0), ({"stage": True}, 1), ({"stage": False}, 0), ({"stage": 2}, 2), ({}, 0)],
)
def test_truth_values_are_the_oldest_spelling_of_stage_1(written: Any, stage: int) -> None:
    plan = make_plan({**ONE, "zero_optimization": written}, world=World())
    assert plan.config.section(ZeroConfig).stage == stage
    assert plan.states["optim"] == ("sharded" if stage else "whole")


@pytest.mark.parametrize("written", ["1", 3, {"stage": "1"}, {"stage": 4}, [], {"stage": 1.5}])
def test_anything_else_is_refused(written: Any) -> None:
    with pytest.raises(ConfigError, match="zero_optimization"):
        make_plan({**ONE, "zero_optimization": written}, world=World())


@pytest.mark.parametrize(
    ("parameters", "size", "why"),
    [
        (None, 500_000_000, "not known"),
        (0, 1_000_000, "the least that auto takes, for 0 parameters"),
        (SMALLEST_BUCKET * BUCKETS, 1_000_000, "of the model, so that"),
        (SMALLEST_BUCKET * BUCKETS * 12 + 1, 12_000_000, "of the model, so that"),
        (LARGEST_BUCKET * BUCKETS + BUCKETS - 1, 500_000_000, "of the model, so that"),
        (70_000_000_000, 500_000_000, "the most that auto takes, for 70,000,000,000 parameters"),
    ],
)
def test_automatic_buckets_fit_the_model_and_say_why(parameters: int | None, size: int, why: str) -> None:
    plan = make_plan(ONE, world=World(), facts=Facts(parameters=parameters))
    (resolved,) = [item for item in plan.resolved if item.key == "zero_optimization.reduce_bucket_size"]
    assert resolved.value == size
    assert plan.config.section(ZeroConfig).reduce_bucket_size == size
    assert why in resolved.why


def test_explain_says_where_deepspeeds_code_differs() -> None:
    plan = make_plan(ONE, world=World(), facts=Facts(parameters=11_000_000))
    differs = {row.key: row.deepspeed for row in explain(plan.config, resolved=plan.resolved) if row.deepspeed}
    assert "5e8" in differs["zero_optimization.reduce_bucket_size"]
    assert "stage 3 only" in differs["zero_optimization.overlap_comm"]


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 3)
        self.right = nn.Linear(3, 3)

    def forward(self, x: Tensor, which: str) -> Tensor:
        layer: nn.Linear = getattr(self, which)
        return layer(x).sum()


def _unused(stage: int) -> tuple[str, bool, bool]:
    settings = config(stage, train_micro_batch_size_per_gpu=2)
    settings["zero_optimization"] = {**settings["zero_optimization"], "ignore_unused_parameters": False}
    torch.manual_seed(0)
    with engine_of(Branches(), settings) as engine:
        before = engine.full_state_dict()
        engine.backward(engine(torch.ones(2, 3), "left"))
        try:
            engine.step()
            message = ""
        except EngineError as error:
            message = str(error)
        unchanged = all(torch.equal(before[name], value) for name, value in engine.full_state_dict().items())
        # One rank's gradient is enough, and training goes on after the error.
        mine = "left" if engine.data_group.rank == 0 else "right"
        engine.backward(engine(torch.ones(2, 3), mine) + (engine(torch.ones(2, 3), "left") if stage == 3 else 0))
        if engine.data_group.size == 1:
            engine.backward(engine(torch.ones(2, 3), "right"))
        engine.step()
        return message, unchanged, not torch.equal(before["right.weight"], engine.full_state_dict()["right.weight"])


@pytest.mark.parametrize(("stage", "world"), [(1, 2), (2, 1), (2, 2)])
def test_unused_parameters_are_an_error_where_the_user_says_so(stage: int, world: int) -> None:
    for message, unchanged, went_on in run_ranks(_unused, stage, world=world):
        assert "right.weight, right.bias" in message
        assert "left" not in message
        assert "ignore_unused_parameters" in message
        assert unchanged
        assert went_on


def _parted(parts: bool) -> str:
    settings = config(1, train_micro_batch_size_per_gpu=2, comm_timeout=10.0)
    settings["zero_optimization"] = {**settings["zero_optimization"], "enable_sanity_checks": True}
    with engine_of(Branches(), settings) as engine:
        engine.backward(engine(torch.ones(2, 3), "left"))
        if parts:
            # As over a backend that matches calls by their order alone: the two ranks mean different things.
            engine.data_group.journal.add("all_reduce sum", "float32", 1, f"only on rank {engine.data_group.rank}")
        try:
            engine.step()
        except CommError as error:
            return str(error)
    return ""


def test_ranks_that_have_parted_are_found_at_the_update() -> None:
    assert run_ranks(_parted, False, world=2) == ["", ""]
    for message in run_ranks(_parted, True, world=2):
        assert "only on rank 0" in message
        assert "only on rank 1" in message


def _changing(asked: bool) -> list[str]:
    heard: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    settings = config(3, train_micro_batch_size_per_gpu=2)
    tiny = {"reduce_bucket_size": 12, "stage3_prefetch_bucket_size": 12, "log_trace_cache_warnings": asked}
    settings["zero_optimization"] = {**settings["zero_optimization"], **tiny}
    handler = Heard(logging.WARNING)
    logging.getLogger("dsx").addHandler(handler)
    with engine_of(Branches(), settings) as engine:
        for which in ("left", "left", "right", "left"):
            engine.backward(engine(torch.ones(2, 3), which))
            engine.step()
    logging.getLogger("dsx").removeHandler(handler)
    return heard


@pytest.mark.parametrize("asked", [True, False])
def test_a_changed_order_of_use_is_told(asked: bool) -> None:
    for heard in run_ranks(_changing, asked, world=2):
        assert bool([text for text in heard if "order in which parameters are used" in text]) is asked


def test_an_order_that_is_left_foretells_nothing() -> None:
    trace = Trace((1, 2, 4))
    for index in (0, 1, 2):
        trace.note(index)
    trace.restart()
    assert list(trace.upcoming()) == [0, 1, 2]
    trace.note(0)
    assert list(trace.upcoming()) == [1, 2]
    assert not trace.astray
    trace.note(2)
    assert trace.astray
    assert list(trace.upcoming()) == []
