"""An optimizer whose state has other shapes than its parameters: saved at one number of ranks, loaded at another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from zero_helpers import SMALL

import dsx
from dsx.testing import Awkward, awkward_batch, run_ranks
from dsx.testing.parity import weights_apart

BATCHES = 4


def config(stage: int, world: int) -> dict[str, Any]:
    return {
        "train_batch_size": 3 * BATCHES,
        "gradient_accumulation_steps": BATCHES // world,
        "optimizer": {"type": "Adafactor", "params": {"lr": 0.05}},
        "zero_optimization": {"stage": stage, **SMALL},
    }


def updates(engine: dsx.Engine, first: int, last: int) -> dict[str, torch.Tensor]:
    """The same four micro-batches an update, whoever sees them."""
    size = engine.data_group.size
    for update in range(first, last):
        for turn in range(BATCHES // size):
            engine.backward(engine(*awkward_batch(update, turn * size + engine.data_group.rank, 0)))
            engine.step()
    return {name: value.clone() for name, value in engine.full_state_dict().items()}


def save_after_two(stage: int, world: int, folder: str) -> dict[str, torch.Tensor]:
    engine, *_ = dsx.initialize(model=Awkward(), config=config(stage, world))
    with engine:
        updates(engine, 0, 2)
        engine.save_checkpoint(folder, tag="two")
        return updates(engine, 2, 4)


def resume(stage: int, world: int, folder: str) -> dict[str, torch.Tensor]:
    engine, *_ = dsx.initialize(model=Awkward(seed=7), config=config(stage, world))
    with engine:
        engine.load_checkpoint(folder, tag="two")
        return updates(engine, 2, 4)


@pytest.mark.parametrize(("stage", "other"), [(0, 2), (1, 0), (2, 3), (3, 1)])
def test_a_factored_state_is_saved_and_resharded(stage: int, other: int, tmp_path: Path) -> None:
    whole = run_ranks(save_after_two, stage, 2, str(tmp_path), world=2)[0]
    for world in (1, 2):
        resumed = run_ranks(resume, other, world, str(tmp_path), world=world)[0]
        assert weights_apart(whole, resumed) < 2e-6
