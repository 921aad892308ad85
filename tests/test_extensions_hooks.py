"""Hooks that outside plugins implement: each example changes what a training or the command line does."""

from __future__ import annotations

import importlib
import logging
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from extension_engines import EXAMPLES, MICRO, PLAIN, engine_of, managed, train
from torch import nn
from typer.testing import CliRunner

import dsx
from dsx.cli.main import build_app
from dsx.errors import ConfigError, PlanError
from dsx.plugin import World
from dsx.plugin.manager import plugin_manager


def make() -> nn.Module:
    """A model for ``dsx count``."""
    return nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1))


def test_the_command_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    app = build_app(managed("command"))
    told = CliRunner().invoke(app, ["count", "--depth", "1", f"{__name__}:make"])
    assert [line.split() for line in told.output.splitlines()] == [
        ["10,100", "0"],
        ["101", "1"],
        ["10,201", "in", "all"],
    ]
    for wrong in ("nothing", "nothing:make", f"{__name__}:nothing", ""):
        refused = CliRunner().invoke(app, ["count", wrong])
        assert "wanted module:callable" in f"{refused.output} {refused.exception}", wrong


def test_the_section_is_refused_when_wrong() -> None:
    def plan(parameters: int, **section: Any) -> Any:
        facts = dsx.plugin.Facts(parameters=parameters)
        config = {"train_batch_size": 1, "memory_budget": section}
        return dsx.make_plan(config, world=World(), facts=facts, plugins=managed("section"))

    resolved = {item.key: item for item in plan(10**9, gigabytes=16).resolved}
    assert resolved["memory_budget.needed"].value == 16.0
    assert "1,000,000,000" in resolved["memory_budget.needed"].why
    with pytest.raises(PlanError, match=r"(?s)memory_budget.gigabytes: found 15, .*16 on each rank.*16 or more"):
        plan(10**9, gigabytes=15)
    assert plan(10**9, gigabytes=15, needed=14.5)
    with pytest.raises(ConfigError, match="memory_budget.gigabites: unknown key .did you mean 'gigabytes'"):
        plan(1, gigabites=15)
    with pytest.raises(ConfigError, match="memory_budget.gigabytes: found -1, wanted"):
        plan(1, gigabytes=-1)


def test_the_model_pass_is_applied() -> None:
    with engine_of("model_pass", freeze={"names": ["0.*", "2.bias"]}) as engine:
        assert [item.name for item in engine.plan.passes] == ["freeze"]
        before = engine.full_state_dict()
        train(engine)
        same = [name for name, value in engine.full_state_dict().items() if torch.equal(value, before[name])]
    assert same == ["0.weight", "0.bias", "2.bias"]
    with pytest.raises(ConfigError, match="freeze.names: found '3.*', which matches no parameter"):
        engine_of("model_pass", freeze={"names": ["3.*"]})


def test_the_observer_speaks_up(caplog: pytest.LogCaptureFixture) -> None:
    with engine_of("observer", norm_watch={"times": 5}) as engine, caplog.at_level(logging.WARNING, "norm_watch"):
        train(engine, 3)
        assert caplog.messages == []
        engine.backward(engine(torch.full((MICRO, 4), 100.0)).square().mean())
        engine.step()
    assert [re.sub(r"norm .*", "norm", message) for message in caplog.messages] == ["update 4: gradient norm"]


def test_the_checkpoint_part_is_saved_and_loaded(tmp_path: Path) -> None:
    average = EXAMPLES["checkpoint_part"].AVERAGE
    with engine_of("checkpoint_part", weight_average={"decay": 0.75}) as engine:
        first = engine.full_state_dict()
        train(engine)
        second = engine.full_state_dict()
        kept = {name: value.clone() for name, value in engine.stash[average].weights.items()}
        assert all(torch.allclose(kept[name], 0.75 * first[name] + 0.25 * second[name]) for name in first)
        engine.save_checkpoint(tmp_path)
        train(engine)
    assert not engine.stash[average].weights
    with engine_of("checkpoint_part", weight_average={"decay": 0.75}) as other:
        other.load_checkpoint(tmp_path)
        assert all(torch.equal(value, kept[name]) for name, value in other.stash[average].weights.items())


def test_the_constructor_runs_in_its_context() -> None:
    config = {**PLAIN, "small_init": {"std": 0.001}}
    before = nn.Linear.reset_parameters
    with dsx.construct(config, plugins=["examples.extensions.construct"]):
        model = nn.Linear(64, 64)
    assert nn.Linear.reset_parameters is before
    with engine_of("construct", model=model, small_init={"std": 0.001}) as engine:
        state = engine.full_state_dict()
    assert state["weight"].std().item() == pytest.approx(0.001, rel=0.1)
    assert not state["bias"].any()


def test_the_loop_leaves_broken_batches_out() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).square().mean()

    good = [torch.full((MICRO, 4), 1.0 + index) for index in range(4)]
    bad = torch.full((MICRO, 4), float("nan"))
    section = {"skip_broken_batches": {"enabled": True}, "gradient_accumulation_steps": 2}
    with (
        engine_of("loop", model=Loss(), **section) as engine,
        engine_of("loop", model=Loss(), gradient_accumulation_steps=2) as plain,
    ):
        data, clean = iter([good[0], bad, bad, good[1], bad, good[2], good[3]]), iter(good)
        found = [engine.train_batch(data).item() for _ in range(2)]
        assert found == pytest.approx([plain.train_batch(clean).item() for _ in range(2)])
        assert (engine.loop.skipped, engine.global_steps, engine.skipped_steps) == (3, 2, 0)
        assert engine.plan.owners["loop"] == "example-loop"
        with pytest.raises(dsx.errors.DataError, match="the data ended within an update"):
            engine.train_batch(iter([good[0], bad]))


def test_a_module_is_loaded_once_whatever_asks_for_it() -> None:
    module: ModuleType = importlib.import_module("examples.extensions.optimizer")
    assert managed("optimizer").names == plugin_manager(extra=[module], block=["zero", "native"]).names
