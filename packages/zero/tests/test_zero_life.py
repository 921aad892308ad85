"""Engines end: nothing of them stays, in any stage, however often they are made."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import torch
from zero_models import engine_of, make, settings, train, world

from dsx.testing.leaks import Traces
from dsx.testing.ranks import run_ranks


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _live_and_die(rounds: int) -> dict[int, tuple[list[int], list[str]]]:
    """By stage: resident bytes after each round, and what else was left."""
    found = {}
    gc.freeze()  # what torch has made is not looked through in each round
    for stage in range(4):
        traces = Traces.now()
        sizes = []
        for _ in range(rounds):
            model = make("Blocks")
            # Weights of a megabyte, so that one that stays is seen.
            model.extra = torch.nn.Linear(512, 512)
            engine = engine_of(model, settings(stage))
            train(engine, [0])
            references = [weakref.ref(thing) for thing in (model, engine, engine.optimizer, engine.driver, engine.mesh)]
            engine.close()
            del model, engine
            gc.collect()
            assert [reference() for reference in references] == [None] * 5
            sizes.append(resident_bytes())
        found[stage] = (sizes, traces.left_behind())
    return found


def test_closed_engines_leave_nothing() -> None:
    """B89: in twenty rounds of create, step, close all objects die; memory grows by less than 5 % after the third."""
    for size in (1, 2):
        for found in run_ranks(_live_and_die, 20, world=size):
            for stage, (sizes, left) in found.items():
                assert left == [], stage
                assert max(sizes[3:]) < 1.05 * sizes[2], stage


def _unclosed() -> None:
    """An engine that nobody closes dies with its last name."""
    for stage in range(4):
        engine = engine_of(make("Blocks"), settings(stage))
        train(engine, [0])
        references = [weakref.ref(engine.module), weakref.ref(engine)]
        if world() == 1:
            del engine
            gc.collect()
            assert [reference() for reference in references] == [None, None], stage


def test_an_engine_that_is_dropped_is_freed() -> None:
    run_ranks(_unclosed, world=1)


def _closed_twice_and_within() -> None:
    for stage in range(4):
        model = make("Blocks")
        with engine_of(model, settings(stage)) as engine:
            train(engine, [0])
            weights = engine.full_state_dict()
            engine.close()
        engine.close()
        for name, param in model.named_parameters():
            assert param.detach().equal(weights[name]), "the module keeps its weights"
        again = engine_of(model, settings(3 - stage))
        assert all(value.equal(weights[name]) for name, value in again.full_state_dict().items())
        train(again, [1])
        again.close()


def test_close_may_come_twice_and_the_model_may_go_on_elsewhere() -> None:
    run_ranks(_closed_twice_and_within)
