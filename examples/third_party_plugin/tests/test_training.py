"""Whole trainings by an engine, on one process and on two, as a user starts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dsx
import pytest
import torch
from dsx.engine.engine import Engine
from two_embeddings import Embeddings, batch, plainly_trained, settings

from acme_sparse_adam import NAME
from acme_sparse_adam.observer import TouchedObserver

UPDATES = 5


def engine_of(**more: Any) -> Engine:
    return dsx.initialize(model=Embeddings(), config=settings(NAME, **more))[0]


def train(engine: Engine, updates: range) -> dict[str, torch.Tensor]:
    """Weights after these updates."""
    for update in updates:
        engine.backward(engine(*batch(update, engine.data_group.rank)))
        engine.step()
    return engine.full_state_dict()


def gap(world: int, more: dict[str, Any]) -> float:
    """By how much an engine's weights differ from those of plain PyTorch with torch's SparseAdam."""
    with engine_of(**more) as engine:
        found = train(engine, range(UPDATES))
    wanted = plainly_trained(updates=UPDATES, world=world)
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


def test_one_process_trains_as_plain_torch() -> None:
    assert gap(1, {}) < 1e-5


def test_two_ranks_train_as_plain_torch(ranks: Callable[..., list[Any]]) -> None:
    assert max(ranks(gap, 2, {}, world=2)) < 1e-5


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with engine_of() as engine:
        train(engine, range(3))
        engine.save_checkpoint(tmp_path)
        wanted = train(engine, range(3, 6))
    with engine_of() as engine:
        engine.load_checkpoint(tmp_path)
        found = train(engine, range(3, 6))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def shares(more: dict[str, Any]) -> list[float | None]:
    """What the observer has counted after each of three updates."""
    with engine_of(**{NAME: {"report_every": 2, **more}}) as engine:
        observer = next(item for item in engine.observers if isinstance(item, TouchedObserver))
        seen = []
        for update in range(3):
            train(engine, range(update, update + 1))
            seen.append(observer.share)
        return seen


def test_the_observer_tells_what_an_update_touches(capsys: pytest.CaptureFixture[str]) -> None:
    used = len(set(batch(1, 0)[1].tolist()))
    assert shares({"parameters": ["items.*"]}) == [None, used / 50, used / 50]
    line = f"step 2 | {100 * used / 50:.2f} % of the gradients' elements are not zero"
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_ranks_count_together(ranks: Callable[..., list[Any]]) -> None:
    used = sum(len({int(row) for rank in range(2) for row in batch(1, rank)[table]}) for table in range(2))
    assert ranks(shares, {}, world=2) == [[None, used / 100, used / 100]] * 2
