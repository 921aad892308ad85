"""A rank that is killed while its engine saves: the last good checkpoint is there, and the next run goes on from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import dsx
from dsx.testing.faults import kills_at
from dsx.testing.ranks import RanksFailed, run_ranks


def make(seed: int) -> dsx.Engine:
    torch.manual_seed(seed)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "comm_timeout": 5.0,
    }
    return dsx.initialize(model=nn.Linear(5, 3), config=config)[0]


def update(engine: dsx.Engine) -> None:
    engine.backward(engine(torch.ones(2, 5)).sum())
    engine.step()


def _is_killed(root: str, call: str, which: int, tag: str) -> None:
    engine = make(0)
    update(engine)
    engine.save_checkpoint(root, "first")
    update(engine)
    if os.environ["RANK"] == "0":  # in stage 0 it writes for both
        with kills_at(os if call == "fsync" else Path, call, call=which):
            engine.save_checkpoint(root, tag)
    engine.save_checkpoint(root, tag)


def _goes_on(root: str) -> tuple[str, int]:
    with make(7) as engine:
        path, _ = engine.load_checkpoint(root)
        steps = engine.global_steps
        update(engine)
        engine.save_checkpoint(root, "next")
        engine.load_checkpoint(root)
        assert engine.global_steps == steps + 1
        return path.name, steps


@pytest.mark.parametrize("tag", ["first", "second"])
@pytest.mark.parametrize(("call", "which"), [("fsync", 1), ("fsync", 4), ("rename", 1)])
def test_a_kill_while_saving_leaves_the_last_good_checkpoint(call: str, which: int, tag: str, tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match="SIGKILL"):
        run_ranks(_is_killed, str(tmp_path), call, which, tag, world=2)
    # The first one, whole; under its own tag too, where it was to be replaced.
    assert run_ranks(_goes_on, str(tmp_path), world=1) == [("first", 1)]
