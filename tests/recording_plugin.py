"""A complete plugin that implements every hook and notes that it was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from dsx.config.section import Section
from dsx.engine.build import make_driver
from dsx.engine.loop import AccumulationLoop
from dsx.engine.observers import Observer
from dsx.plugin import (
    OPTIMIZER,
    CheckpointPart,
    Command,
    Component,
    Family,
    MeshAxis,
    ModelPass,
    Phase,
    PluginSpec,
    Problem,
    ReportRow,
    Resolved,
    hookimpl,
    sets,
)
from dsx.plugin.manager import plugin_manager

ASKED: list[str] = []


class Counting(Observer):
    """Counts updates."""

    updates = 0

    def after_step(self, engine: Any, *, updated: bool) -> None:
        self.updates += updated


class RecordedSection(Section):
    """The plugin's own keys."""

    width: int = 0
    """A number."""


def say(text: str = "nothing") -> None:
    """A subcommand."""
    print(f"the plugin says {text}")


@hookimpl
def dsx_plugin() -> PluginSpec:
    ASKED.append("dsx_plugin")
    return PluginSpec(name="recorded", api=1, summary="asked about everything", sections={"recorded": RecordedSection})


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    ASKED.append("dsx_components")
    yield Component(OPTIMIZER, "recorded_sgd", load="torch.optim:SGD")


@hookimpl
def dsx_commands() -> Iterator[Command]:
    ASKED.append("dsx_commands")
    yield Command("recorded", load="recording_plugin:say", summary="says something")


@hookimpl
def dsx_resolve(config: Any, world: Any, facts: Any) -> Iterator[Resolved]:
    ASKED.append("dsx_resolve")
    yield from ()


@hookimpl
def dsx_mesh_axes(config: Any, world: Any) -> Iterator[MeshAxis]:
    ASKED.append("dsx_mesh_axes")
    yield from ()


@hookimpl
def dsx_claims(config: Any, world: Any) -> Iterator[Any]:
    ASKED.append("dsx_claims")
    yield sets("loop", "recorded", why="it counts micro-batches itself")
    yield sets("driver", "recorded", why="it builds the driver")


@hookimpl
def dsx_passes(config: Any) -> Iterator[ModelPass]:
    ASKED.append("dsx_passes")
    yield ModelPass("recorded", Phase.REWRITE, lambda model, plan: model)


@hookimpl
def dsx_check_plan(plan: Any) -> Iterator[Problem]:
    ASKED.append("dsx_check_plan")
    yield from ()


@hookimpl
def dsx_construct(plan: Any) -> AbstractContextManager[None]:
    ASKED.append("dsx_construct")
    return nullcontext()


@hookimpl
def dsx_param_families(plan: Any, model: torch.nn.Module) -> Iterator[Family]:
    ASKED.append("dsx_param_families")
    yield Family("biases", lambda name, parameter: name.endswith("bias"))


@hookimpl
def dsx_make_driver(plan: Any, model: Any, families: Any, make_inner: Any, mesh: Any) -> Any:
    ASKED.append("dsx_make_driver")
    assert "biases" in [family.name for family in families]
    unowned = replace(plan, owners={})
    return make_driver(unowned, model, families, make_inner, mesh=mesh, plugins=plugin_manager())


@hookimpl
def dsx_make_loop(plan: Any, engine: Any) -> AccumulationLoop:
    ASKED.append("dsx_make_loop")
    return AccumulationLoop(engine)


@hookimpl
def dsx_observers(plan: Any, engine: Any) -> Iterator[Observer]:
    ASKED.append("dsx_observers")
    yield Counting()


@hookimpl
def dsx_checkpoint_parts(engine: Any) -> Iterator[CheckpointPart]:
    ASKED.append("dsx_checkpoint_parts")
    observer = next(observer for observer in engine.observers if isinstance(observer, Counting))

    def load(state: Any) -> None:
        observer.updates = int(state["updates"])

    yield CheckpointPart("recorded", 1, lambda: {"updates": observer.updates}, load)


@hookimpl
def dsx_report() -> Iterator[ReportRow]:
    ASKED.append("dsx_report")
    yield ReportRow("recorded", "calls", "many")


@hookimpl
def dsx_teardown(engine: Any) -> None:
    ASKED.append("dsx_teardown")
