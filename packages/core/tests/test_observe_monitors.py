"""Monitors that a configuration enables are written after each update, under DeepSpeed's names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from observe_helpers import MICRO, engine_of, train

from dsx.monitor.observer import MonitorObserver
from dsx.testing.ranks import run_ranks


def read(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_metrics_of_each_update(tmp_path: Path) -> None:
    jsonl = {"enabled": True, "output_path": str(tmp_path), "job_name": "run"}
    with engine_of(jsonl_monitor=jsonl, gradient_accumulation_steps=2) as engine:
        losses = train(engine, micro_batches=4)
        norm = engine.get_global_grad_norm()
    first, second = read(tmp_path)
    assert first["step"] == 2 * MICRO  # samples, as in DeepSpeed
    assert second == {
        "step": 4 * MICRO,
        "Train/Samples/updates": 2,
        "Train/Samples/skipped": 0,
        "Train/Samples/train_loss": pytest.approx(sum(losses[2:]) / 2),
        "Train/Samples/lr": 0.1,
        "Train/Samples/grad_norm": pytest.approx(norm),
    }


def test_loss_scale_and_times_where_there_are_any(tmp_path: Path) -> None:
    jsonl = {"enabled": True, "output_path": str(tmp_path), "job_name": "run"}
    with engine_of(jsonl_monitor=jsonl, wall_clock_breakdown=True, fp16={"enabled": True, "loss_scale": 8}) as engine:
        train(engine)
    (only,) = read(tmp_path)
    assert only["Train/Samples/loss_scale"] == 8
    for phase in ("forward", "backward", "step"):
        assert only[f"Train/Samples/elapsed_time_ms_{phase}"] > 0


def test_no_monitor_no_observer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with engine_of(csv_monitor={"enabled": False}, jsonl_monitor={"enabled": False}) as engine:
        train(engine)
        assert not [observer for observer in engine.observers if isinstance(observer, MonitorObserver)]
    assert list(tmp_path.iterdir()) == []


def _ranks(folder: str) -> int:
    with engine_of(csv_monitor={"enabled": True, "output_path": folder, "job_name": "run"}) as engine:
        train(engine)
        return len(engine.observers)


def test_only_rank_0_writes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert run_ranks(_ranks, str(tmp_path), world=2) == [1, 0]
    assert (tmp_path / "run" / "Train_Samples_train_loss.csv").read_text().count("\n") == 2
