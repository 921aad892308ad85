"""Every hook of dsx, by the phase of life in which it is called.

Hooks return typed values, take keyword arguments (an implementation may take fewer), and change nothing they are
given. *collect*: all plugins answer. *owner*: only the plugin that owns the role is asked. *each*: errors are kept
and none stops the rest. Nothing may depend on the order in which plugins load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pluggy
import torch

from dsx.plugin.roles import Driver, Loop, Observer
from dsx.plugin.types import (
    CheckpointPart,
    Claim,
    Command,
    Component,
    Facts,
    Family,
    Kernel,
    MeshAxis,
    ModelPass,
    PluginSpec,
    Problem,
    ReportRow,
    Resolved,
    World,
)

if TYPE_CHECKING:
    from typing import Any

    from dsx.config.root import DsxConfig
    from dsx.engine.engine import Engine
    from dsx.mesh.mesh import Mesh
    from dsx.optim.binding import OptimizerBinding
    from dsx.planning.plan import Plan

hookspec = pluggy.HookspecMarker("dsx")
hookimpl = pluggy.HookimplMarker("dsx")


# Discovery ---------------------------------------------------------------------------------------------------------


@hookspec
def dsx_plugin() -> PluginSpec:  # type: ignore[empty-body]
    """Say who the plugin is: name, API version, summary, configuration sections.

    Called: once, when the plugin is found; collect.
    Arguments: none.
    Returns: one PluginSpec. A plugin without one is refused.
    Example: ``return PluginSpec(name="zero", api=1, summary="shards training state", sections={...})``
    """


@hookspec
def dsx_components() -> Iterable[Component[Any] | Kernel]:  # type: ignore[empty-body]
    """Offer optimizers, schedules, kernels, stores, monitors, runners and other components by name.

    Called: once, when the registry is made; collect.
    Arguments: none.
    Returns: components and kernel variants; nothing when there are none. A name is unique within its kind.
    Example: ``yield Component(OPTIMIZER, "sophia", load="acme_dsx.sophia:Sophia")``
    """


@hookspec
def dsx_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Add subcommands to ``dsx``.

    Called: once, when the command line starts; collect.
    Arguments: none.
    Returns: commands, imported when they are called; nothing when there are none.
    Example: ``yield Command("io", load="dsx_zero.io_cli:app", summary="measure and tune file I/O")``
    """


# Planning ----------------------------------------------------------------------------------------------------------


@hookspec
def dsx_resolve(config: DsxConfig, world: World, facts: Facts) -> Iterable[Resolved]:  # type: ignore[empty-body]
    """Give a value, with its reason, for each ``"auto"`` in the plugin's own sections.

    Called: once per plan, after the batch sizes are solved; collect.
    Arguments: the whole configuration, this process, what is known of model and machine.
    Returns: one Resolved per key that stands at auto; a key left at auto is an error.
    Example: ``yield Resolved("zero_optimization.reduce_bucket_size", 4_000_000, "a tenth of the model")``
    """


@hookspec
def dsx_mesh_axes(config: DsxConfig, world: World) -> Iterable[MeshAxis]:  # type: ignore[empty-body]
    """Name mesh axes with their degrees.

    Called: once per plan, first of all; collect.
    Arguments: the whole configuration, this process.
    Returns: axes; nothing when the plugin needs none. ``data`` takes what the others leave.
    Example: ``yield MeshAxis("pipe", degree=4, why="pipeline.stages")``
    """


@hookspec
def dsx_claims(config: DsxConfig, world: World) -> Iterable[Claim]:  # type: ignore[empty-body]
    """Say which resources this configuration sets and which it needs, each with a reason.

    Called: once per plan, before any tensor or process group exists; collect.
    Arguments: the whole configuration, this process.
    Returns: claims; nothing when the plugin is idle.
    Example: ``yield sets("grad", "sharded", why="zero_optimization.stage=2")``
    """


@hookspec
def dsx_passes(config: DsxConfig) -> Iterable[ModelPass]:  # type: ignore[empty-body]
    """Name the changes that the model undergoes on its way into the engine, each with its phase.

    Called: once per plan; collect.
    Arguments: the whole configuration.
    Returns: passes, run in the order of their phases; nothing when there are none.
    Example: ``yield ModelPass("moe-replace", Phase.REWRITE, replace_moe_blocks)``
    """


@hookspec
def dsx_check_plan(plan: Plan) -> Iterable[Problem]:  # type: ignore[empty-body]
    """Report what cannot run and cannot be said as a claim.

    Called: once per plan, last; collect. All problems are shown at once.
    Arguments: the plan as it would be frozen.
    Returns: problems; nothing when all is well.
    Example: ``yield Problem("pipeline.stages", "more stages than layers", "use at most 12")``
    """


# Building ----------------------------------------------------------------------------------------------------------


@hookspec
def dsx_construct(plan: Plan) -> AbstractContextManager[Any] | None:
    """Give a context around the user's model constructor.

    Called: by ``dsx.construct``; collect, entered in the plugins' order of names.
    Arguments: the plan.
    Returns: a context manager, or None.
    Example: ``return deferred_init()``
    """


@hookspec
def dsx_param_families(plan: Plan, model: torch.nn.Module) -> Iterable[Family]:  # type: ignore[empty-body]
    """Name families of parameters that are not replicated over all of ``data``.

    Called: once per engine, after the model passes; collect.
    Arguments: the plan, the model.
    Returns: families; each parameter falls in exactly one, ``dense`` takes the rest.
    Example: ``yield Family("expert", is_expert, split_over=("expert",), reduce_over=("expert_data",))``
    """


@hookspec
def dsx_make_driver(  # type: ignore[empty-body]
    plan: Plan, model: torch.nn.Module, families: Sequence[Family], make_inner: OptimizerBinding, mesh: Mesh
) -> Driver:
    """Build the driver: gradients and update.

    Called: once per engine; owner of the resource ``driver``.
    Arguments: the plan, the model, its families, the optimizer waiting for its pieces, the mesh.
    Returns: a Driver.
    Example: ``return ShardedDriver(plan, model, families, make_inner, mesh)``
    """


@hookspec
def dsx_make_loop(plan: Plan, engine: Engine) -> Loop:  # type: ignore[empty-body]
    """Build the loop: how an update is made of micro-batches.

    Called: once per engine; owner of the resource ``loop``.
    Arguments: the plan, the engine.
    Returns: a Loop.
    Example: ``return ScheduleLoop(plan, engine)``
    """


@hookspec
def dsx_observers(plan: Plan, engine: Engine) -> Iterable[Observer]:  # type: ignore[empty-body]
    """Give observers of forward, backward, step and save.

    Called: once per engine, last in building; collect.
    Arguments: the plan, the engine.
    Returns: observers, bound once; nothing when there are none.
    Example: ``yield MetricsObserver(plan.config)``
    """


# State -------------------------------------------------------------------------------------------------------------


@hookspec
def dsx_checkpoint_parts(engine: Engine) -> Iterable[CheckpointPart]:  # type: ignore[empty-body]
    """Add named, versioned parts to the engine's checkpoints.

    Called: at each save and load; collect.
    Arguments: the engine.
    Returns: parts with unique names; nothing when the plugin keeps no state.
    Example: ``yield CheckpointPart("curriculum", 1, sampler.state, sampler.load)``
    """


# Care --------------------------------------------------------------------------------------------------------------


@hookspec
def dsx_report() -> Iterable[ReportRow]:  # type: ignore[empty-body]
    """Say how the plugin fares on this machine.

    Called: by ``dsx report``; each.
    Arguments: none.
    Returns: rows; nothing when there is nothing to say.
    Example: ``yield ReportRow("kernels", "adam_step", "avx512")``
    """


@hookspec
def dsx_teardown(engine: Engine) -> None:
    """Release what the plugin holds for this engine.

    Called: when an engine closes; each.
    Arguments: the engine.
    Returns: nothing.
    Example: ``engine.stash[POOL].close()``
    """
