"""What ships with the core but is a plugin like any other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from dsx.builtin import (
    accelerators,
    activation,
    codecs,
    kernels,
    monitors,
    optimizers,
    partitioners,
    runners,
    schedules,
    stores,
)
from dsx.plugin import API_VERSION, Component, Kernel, ModelPass, Observer, PluginSpec, Problem, hookimpl

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.engine.engine import Engine
    from dsx.planning.plan import Plan

SPEC = PluginSpec(
    name="core", api=API_VERSION, summary="devices, kernels, optimizers, schedules, stores, monitors, runners"
)
ROOMS = (accelerators, activation, codecs, kernels, monitors, optimizers, partitioners, runners, schedules, stores)


@hookimpl
def dsx_plugin() -> PluginSpec:
    return SPEC


@hookimpl
def dsx_components() -> Iterable[Component[Any] | Kernel]:
    return chain.from_iterable(room.components() for room in ROOMS)


@hookimpl
def dsx_passes(config: DsxConfig) -> Iterable[ModelPass]:
    from dsx.activation.chosen import chosen_passes

    return chosen_passes(config)


@hookimpl
def dsx_check_plan(plan: Plan) -> Iterable[Problem]:
    from dsx.planning.checks import core_problems

    return core_problems(plan)


@hookimpl
def dsx_observers(engine: Engine) -> Iterable[Observer]:
    from dsx.observe.choose import observers_for

    return observers_for(engine)
