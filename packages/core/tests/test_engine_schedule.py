"""The engine and its learning rates: applied before update 0, told before the first step, restored by a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.engine.engine import Engine

WARMUP: Mapping[str, Any] = {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 10, "warmup_type": "linear"},
}


class Weight(nn.Module):
    """One weight; the gradient is what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, gradient: Tensor) -> Tensor:
        return self.weight * gradient


def engine_with(
    scheduler: Mapping[str, Any] | None = None,
    *,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    model: Any = None,
    **more: Any,
) -> Engine:
    settings: dict[str, Any] = {"train_batch_size": 1, **more}
    if optimizer is None:
        settings["optimizer"] = {"type": "SGD", "params": {"lr": 1.0}}
    if scheduler is not None:
        settings["scheduler"] = scheduler
    made = Weight() if model is None else model
    engine: Engine = dsx.initialize(model=made, optimizer=optimizer, lr_scheduler=lr_scheduler, config=settings)[0]
    return engine


def update(engine: Engine, gradient: float = 1.0) -> float:
    """One update; what the weight moved by."""
    before = float(engine.full_state_dict()["weight"])
    engine.backward(engine(torch.tensor(gradient)))
    engine.step()
    return before - float(engine.full_state_dict()["weight"])


def test_the_first_update_has_the_rate_of_index_0() -> None:
    """B07: a linear warm-up from 0: update 0 moves nothing, update 1 uses index 1; never the optimizer's own 1.0."""
    with engine_with(WARMUP) as engine:
        moved = [update(engine) for _ in range(12)]
    expected = [min(index, 10) * 0.01 for index in range(12)]
    assert moved == pytest.approx(expected, abs=1e-6)
    assert moved[0] == 0


@pytest.mark.parametrize(
    "scheduler",
    [
        WARMUP,
        {"type": "WarmupDecayLR", "params": {**WARMUP["params"], "total_num_steps": 20}},
        {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 4, "total_num_steps": 20}},
        {"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 5}},
        {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.01}},
        {"type": "StepLR", "params": {"step_size": 2}},
        None,
    ],
    ids=lambda scheduler: scheduler["type"] if scheduler else "none",
)
def test_the_rate_is_known_before_the_first_step_and_after_a_skipped_one(scheduler: Any) -> None:
    """B09: get_lr and get_last_lr give the rate of the next update, also if fp16 overflow skipped the first."""
    fp16 = {"enabled": True, "initial_scale_power": 4}
    with engine_with(scheduler, fp16=fp16) as engine:
        told = engine.get_lr()
        assert math.isfinite(told[0])
        if engine.lr_scheduler is not None:
            assert engine.lr_scheduler.get_last_lr() == told
        update(engine, math.inf)
        assert engine.skipped_steps == 1
        assert engine.get_lr() == told
        assert update(engine) == pytest.approx(told[0], rel=1e-3)
        for _ in range(3):
            told = engine.get_lr()
            assert update(engine) == pytest.approx(told[0], rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("kind", ["linear", "log"])
def test_no_warm_up_runs_at_the_full_rate_from_the_start(kind: str) -> None:
    """B10: zero warm-up steps are accepted, and update 0 already has the full rate."""
    params = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 0, "warmup_type": kind}
    with engine_with({"type": "WarmupLR", "params": params}) as engine:
        assert [update(engine) for _ in range(3)] == pytest.approx([0.1] * 3)


def halving(index: int) -> float:
    return 0.5 ** (index // 3)


def by_object() -> Engine:
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.5)
    return engine_with(
        optimizer=optimizer, lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, halving), model=model
    )


def by_function() -> Engine:
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.5)
    return engine_with(
        optimizer=optimizer, lr_scheduler=lambda built: torch.optim.lr_scheduler.LambdaLR(built, halving), model=model
    )


def by_config() -> Engine:
    return engine_with({"type": "WarmupDecayLR", "params": {**WARMUP["params"], "total_num_steps": 17}})


@pytest.mark.parametrize("make", [by_object, by_function, by_config])
def test_the_schedule_goes_on_after_a_checkpoint(make: Callable[[], Engine], tmp_path: Path) -> None:
    """B11: ten updates, a save, a load into a fresh engine and ten more have the rates and the weights of twenty."""
    with make() as engine:
        rates = []
        for index in range(20):
            rates.append(engine.get_lr()[0])
            update(engine, 1.0 + index)
        unbroken = engine.full_state_dict()["weight"]
    with make() as engine:
        for index in range(10):
            update(engine, 1.0 + index)
        engine.save_checkpoint(tmp_path)
    with make() as engine:
        engine.load_checkpoint(tmp_path)
        again = []
        for index in range(10, 20):
            again.append(engine.get_lr()[0])
            update(engine, 1.0 + index)
        assert again == rates[10:]
        assert torch.equal(engine.full_state_dict()["weight"], unbroken)
        assert engine.global_steps == 20


def test_a_rate_set_by_hand_counts_at_the_next_update() -> None:
    with engine_with() as engine:
        engine.optimizer.param_groups[0]["lr"] = 0.25
        assert engine.get_lr() == [0.25]
        assert update(engine) == 0.25
