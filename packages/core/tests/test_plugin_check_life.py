"""An engine's life with a plugin: faults in hooks, observers and parts, and what is left behind, one by one."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from check_subjects import bad, subject

from dsx.authoring.check import leaving, living, numerics
from dsx.authoring.check.findings import Verdict
from dsx.authoring.check.state import State
from dsx.authoring.check.subject import Subject
from dsx.engine.observers import Observer
from dsx.plugin import (
    CODEC,
    OPTIMIZER,
    PARTITIONER,
    SCHEDULE,
    CheckpointPart,
    Component,
    Kernel,
    Layer,
    ModelPass,
    Phase,
    Score,
    Section,
    needs,
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a child of the check has it: the files of the current folder are compared."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


class Quiet(Section):
    """A section with a switch."""

    enabled: bool = False
    """Switches it on."""


class Clumsy(Observer):
    """Fails in two of its methods."""

    def after_step(self, engine: Any, *, updated: bool) -> None:
        raise ZeroDivisionError("after_step")

    def after_save(self, engine: Any, path: Path) -> None:
        raise OSError("disk")


def test_good_plugin_lives_and_leaves_nothing(tmp_path: Path) -> None:
    def observers(plan: Any) -> list[Observer]:
        return [Observer()] if plan.config.section(Quiet).enabled else []

    it = subject(folder=tmp_path, sections={"quiet": Quiet}, dsx_observers=observers)
    found = [*living.lives(it), *leaving.leaks(it), *numerics.parity(it)]
    assert [finding for finding in found if finding.bad] == []
    assert "engine life, quiet.enabled=true" in {finding.check for finding in found}


def test_every_fault_of_a_life_is_told_by_its_place(tmp_path: Path) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("part")

    def broken(model: Any, plan: Any) -> Any:
        raise RuntimeError("pass")

    def teardown(engine: Any) -> None:
        raise KeyError("pool")

    it = subject(
        folder=tmp_path,
        dsx_observers=lambda: [Clumsy(), 5],
        dsx_checkpoint_parts=lambda: [CheckpointPart("acme", 1, state=fail, load=fail)],
        dsx_passes=lambda: [ModelPass("acme", Phase.REWRITE, broken)],
        dsx_param_families=lambda: ["dense"],
        dsx_teardown=teardown,
    )
    found = bad(living.lives(it))
    assert "ZeroDivisionError: after_step" in found["observer Clumsy.after_step"]
    assert "OSError: disk" in found["observer Clumsy.after_save"]
    assert "RuntimeError: part" in found["checkpoint part 'acme': state"]
    assert "RuntimeError: part" in found["checkpoint part 'acme': load"]
    assert "RuntimeError: pass" in found["model pass 'acme'"]
    assert "found str 'dense', wanted Family" in found["hook dsx_param_families"]
    assert "int" in found["hook dsx_observers"]
    assert "KeyError: 'pool'" in found["hook dsx_teardown"]


def test_fault_of_a_plugin_that_is_used_is_told(tmp_path: Path) -> None:
    def observers(plan: Any) -> list[Observer]:
        return [Clumsy()] if plan.config.section(Quiet).enabled else []

    found = bad(living.lives(subject(folder=tmp_path, sections={"quiet": Quiet}, dsx_observers=observers)))
    assert "ZeroDivisionError" in found["observer Clumsy.after_step"]
    told = bad(living.lives(subject(folder=tmp_path, dsx_observers=lambda: (), config={"steps_per_print": "odd"})))
    assert "ConfigError" in told["engine life, the configuration given"]


def test_plugin_without_a_plan_has_no_life(tmp_path: Path) -> None:
    it = subject(folder=tmp_path, dsx_claims=lambda: [needs("param", "sharded", why="it is large")])
    (life,), (left,) = living.lives(it), leaving.leaks(it)
    assert (life.verdict, left.verdict) == (Verdict.NOT_APPLICABLE, Verdict.NOT_APPLICABLE)


# What is left behind ----------------------------------------------------------------------------------------------


class Litter(Observer):
    """Leaves a thread, a variable, an open file, hooks and a reference behind."""

    def __init__(self, engine: Any, ended: threading.Event, kept: list[Any], folder: Path) -> None:
        threading.Thread(target=ended.wait, name="acme-litter", daemon=True).start()
        os.environ["ACME_LITTER"] = "1"
        engine.module.leave.register_forward_hook(lambda *args: None)
        torch.rand(1)
        torch.set_num_threads(torch.get_num_threads() + 1)
        warnings.filterwarnings("ignore", message="acme litter")
        kept.append(engine.module)
        kept.append((folder / "litter").open("w"))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setenv("ACME_LITTER", "0")
    threads = torch.get_num_threads()
    event = threading.Event()
    with warnings.catch_warnings():
        yield event
    event.set()
    torch.set_num_threads(threads)


def test_every_thing_left_behind_is_told(tmp_path: Path, ended: threading.Event) -> None:
    kept: list[Any] = []
    it = subject(folder=tmp_path, dsx_observers=lambda engine: [Litter(engine, ended, kept, tmp_path)])
    found = bad(leaving.leaks(it))
    for thing in kept[1::2]:
        thing.close()
    assert set(found) == {
        "threads",
        "environment",
        "torch settings",
        "random numbers",
        "warning filters",
        "open files",
        "hooks on the model",
        "freed engine",
    }
    assert "thread 'acme-litter'" in found["threads"]
    assert "again, thread 'acme-litter'" in found["threads"]
    assert "Awkward is still alive, held by list" in found["freed engine"]


def test_what_is_left_by_saying_who_it_is_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_LITTER", "0")
    before = State.now()

    def components() -> list[Any]:
        os.environ["ACME_LITTER"] = "1"
        return []

    it = replace(subject(folder=tmp_path, dsx_components=components), before=before)
    assert "when asked for its offers" in bad(leaving.leaks(it))["environment"]


# Numbers ----------------------------------------------------------------------------------------------------------


def test_training_that_is_changed_unasked_is_caught(tmp_path: Path) -> None:
    def scaled(model: Any, plan: Any) -> Any:
        with torch.no_grad():
            model.leave.weight.mul_(1.01)
        return model

    it = subject(folder=tmp_path, dsx_passes=lambda: [ModelPass("acme", Phase.REWRITE, scaled)])
    assert set(bad(numerics.parity(it))) == {"training without it", "plain PyTorch"}


def test_each_wrong_variant_is_caught_by_itself(tmp_path: Path) -> None:
    from dsx.kernels.adam_step import adam_step

    def hasty(*tensors: Any, **settings: Any) -> None:
        adam_step(*tensors, **{**settings, "weight_decay": 0.0})

    offers = tuple(
        Kernel("adam_step", name, load=load, score=score)
        for name, load, score in (
            ("hasty", lambda: hasty, lambda: Score(9, "fast")),
            ("right", lambda: adam_step, lambda: Score(8, "right")),
            ("absent", lambda: adam_step, lambda: Score(0, "no such processor")),
        )
    )
    found = list(numerics.variants(subject(folder=tmp_path, offers=offers)))
    assert [(finding.check, finding.verdict.value) for finding in found] == [
        ("kernel adam_step=hasty", "wrong"),
        ("kernel adam_step=right", "ok"),
        ("kernel adam_step=absent", "not applicable"),
    ]


class Forgetful(torch.optim.SGD):
    """Keeps its momentum where no state dictionary sees it."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        self._velocity: dict[Any, torch.Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in (param for param in group["params"] if param.grad is not None):
                velocity = self._velocity.setdefault(param, torch.zeros_like(param))
                velocity.mul_(0.9).add_(param.grad)
                param.sub_(velocity, alpha=group["lr"])


class Liar:
    """A codec that needs more bytes than it says."""

    name = "liar"

    def packed_bytes(self, numel: int) -> int:
        return max(2 * numel - 1, 0)

    def encode(self, values: torch.Tensor, packed: torch.Tensor) -> None:
        packed.copy_(values.to(torch.bfloat16).view(torch.uint8)[: packed.numel()])

    def decode(self, packed: torch.Tensor, values: torch.Tensor) -> None:
        whole = torch.zeros(2 * values.numel(), dtype=torch.uint8)
        whole[: packed.numel()] = packed
        values.copy_(whole.view(torch.bfloat16))


def all_in_one(layers: list[Layer], *, parts: int) -> list[int]:
    """A partitioner that gives everything to the last part."""
    return [0] * parts + [len(layers)]


def negative(index: int, **params: Any) -> float:
    """A schedule below zero."""
    return -1.0


def found_in(it: Subject, step: Any) -> dict[str, str]:
    return bad(step(it))


@pytest.mark.parametrize(
    ("kind", "thing", "step"),
    [
        (OPTIMIZER, Forgetful, numerics.optimizers),
        (CODEC, Liar, numerics.codecs),
        (PARTITIONER, all_in_one, numerics.partitioners),
        (SCHEDULE, negative, numerics.schedules),
    ],
)
def test_component_that_breaks_a_law_of_its_kind_is_caught(tmp_path: Path, kind: Any, thing: Any, step: Any) -> None:
    it = subject(folder=tmp_path, offers=(Component(kind, "acme-wrong", load=lambda: thing),))
    assert set(found_in(it, step)) == {f"{kind.name} acme-wrong"}


def test_component_that_needs_params_is_checked_with_those_given(tmp_path: Path) -> None:
    def ramp(optimizer: Any, total: int) -> Any:
        return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total)

    offers = (
        Component(SCHEDULE, "ramp", load=lambda: ramp),
        Component(OPTIMIZER, "picky", load=lambda: lambda params, momentum: torch.optim.SGD(params, momentum=momentum)),
    )
    without = subject(folder=tmp_path, offers=offers)
    told = [*numerics.schedules(without), *numerics.optimizers(without)]
    assert [finding.verdict for finding in told] == [Verdict.NOT_APPLICABLE] * 2
    assert "total" in told[0].found
    assert told[1].found.startswith("it needs momentum; give --config FILE")
    config = {"scheduler": {"type": "Ramp", "params": {"total": 5}}}
    (schedule,) = numerics.schedules(subject(folder=tmp_path, offers=offers, config=config))
    assert schedule.verdict is Verdict.OK, schedule.found
