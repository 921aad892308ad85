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
    Example:
        class AcmeSection(Section):
            patience: Auto[int] = 0

        return PluginSpec(name="acme", api=1, summary="stops in time", sections={"acme": AcmeSection})
    """


@hookspec
def dsx_components() -> Iterable[Component[Any] | Kernel]:  # type: ignore[empty-body]
    """Offer optimizers, schedules, kernels, codecs, stores, monitors, runners and other components by name.

    Called: once, when the registry is made; collect.
    Arguments: none.
    Returns: components and kernel variants; nothing when there are none. A name is unique within its kind.
    Example:
        yield Component(OPTIMIZER, "acme", load="torch.optim:RMSprop", summary="imported when a file names it")
        yield Kernel("acme_scale", "torch", load="torch:mul", score=lambda: Score(1, "runs anywhere"))
    """


@hookspec
def dsx_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Add subcommands to ``dsx``.

    Called: once, when the command line starts; collect.
    Arguments: none.
    Returns: commands, imported when they are called; nothing when there are none.
    Example: yield Command("torch-env", load="torch.utils.collect_env:main", summary="what torch finds here")
    """


# Planning ----------------------------------------------------------------------------------------------------------


@hookspec
def dsx_resolve(config: DsxConfig, world: World, facts: Facts) -> Iterable[Resolved]:  # type: ignore[empty-body]
    """Give a value, with its reason, for each ``"auto"`` in the plugin's own sections.

    Called: once per plan, after the batch sizes are solved; collect.
    Arguments: config, with the core's values in it; world, this process; facts, what is known of model and machine.
    Returns: one Resolved per key that stands at auto; a key left at auto is an error.
    Example:
        if isinstance(config.acme.patience, AutoType):
            updates = 10 if facts.device == "cpu" else 100
            yield Resolved("acme.patience", updates, f"about a minute on {facts.device}")
    """


@hookspec
def dsx_mesh_axes(config: DsxConfig, world: World) -> Iterable[MeshAxis]:  # type: ignore[empty-body]
    """Name mesh axes with their degrees.

    Called: once per plan, first of all; collect.
    Arguments: config, every section; world, this process.
    Returns: axes; nothing when the plugin needs none. ``data`` takes what the others leave.
    Example: yield MeshAxis("pair", degree=2 if world.size % 2 == 0 else 1, why="ranks work in pairs")
    """


@hookspec
def dsx_claims(config: DsxConfig, world: World) -> Iterable[Claim]:  # type: ignore[empty-body]
    """Say which resources this configuration sets and which it needs, each with a reason.

    Called: once per plan, before any tensor or process group exists; collect.
    Arguments: config, without any auto; world, this process.
    Returns: claims; nothing when the plugin is idle.
    Example:
        if world.size == 1:
            yield sets("inference", "acme", why="one process generates by itself")
            yield needs("param", "whole", why="it reads weights as they are", nearest="zero_optimization.stage=2")
    """


@hookspec
def dsx_passes(config: DsxConfig) -> Iterable[ModelPass]:  # type: ignore[empty-body]
    """Name the changes that the model undergoes on its way into the engine, each with its phase.

    Called: once per plan; collect.
    Arguments: config, without any auto.
    Returns: passes, run in the order of their phases; nothing when there are none.
    Example:
        import torch

        def without_dropout(model, plan):
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            return model

        yield ModelPass("acme-no-dropout", Phase.REWRITE, without_dropout)
    """


@hookspec
def dsx_check_plan(plan: Plan) -> Iterable[Problem]:  # type: ignore[empty-body]
    """Report what cannot run and cannot be said as a claim.

    Called: once per plan, last; collect. All problems are shown at once.
    Arguments: plan, as it would be frozen.
    Returns: problems; nothing when all is well.
    Example:
        if plan.batch.accumulation == 1:
            yield Problem("gradient_accumulation_steps", "1 leaves nothing to compare", "use at least 2")
    """


# Building ----------------------------------------------------------------------------------------------------------


@hookspec
def dsx_construct(plan: Plan) -> AbstractContextManager[Any] | None:
    """Give a context around the user's model constructor.

    Called: by ``dsx.construct``; collect, entered in the plugins' order of names.
    Arguments: plan, as far as it is known without the model.
    Returns: a context manager, or None.
    Example:
        import torch

        return torch.random.fork_rng()  # what the constructor draws does not change what is drawn after it
    """


@hookspec
def dsx_param_families(plan: Plan, model: torch.nn.Module) -> Iterable[Family]:  # type: ignore[empty-body]
    """Name families of parameters that have their own rule of reduction and sharding.

    Called: once per engine, after the model passes; collect.
    Arguments: plan; model, as the passes left it.
    Returns: families; a parameter falls in one at most, and ``dense`` takes the rest.
    Example: yield Family("bias", lambda name, param: param.ndim == 1, shard_over=())  # too small to be cut
    """


@hookspec
def dsx_make_driver(  # type: ignore[empty-body]
    plan: Plan, model: torch.nn.Module, families: Sequence[Family], make_inner: OptimizerBinding, mesh: Mesh
) -> Driver:
    """Build the driver: gradients and update.

    Called: once per engine; owner of the resource ``driver``.
    Arguments: plan; model; families of its parameters; make_inner, the optimizer waiting for its pieces; mesh.
    Returns: a Driver.
    Example:
        from dsx.engine.build import cut_buckets, replicated_policy
        from dsx.flat.driver import FlatDriver

        policy = replicated_policy(plan, shard_state=True)  # each rank keeps its share of the optimizer's state

        def policy_of(name, param):
            return (policy, "") if param.requires_grad else None

        buckets = cut_buckets(plan, model, families, make_inner, mesh=mesh, policy_of=policy_of)
        return FlatDriver(model, buckets, binding=make_inner, mesh=mesh)
    """


@hookspec
def dsx_make_loop(plan: Plan, engine: Engine) -> Loop:  # type: ignore[empty-body]
    """Build the loop: how an update is made of micro-batches.

    Called: once per engine; owner of the resource ``loop``.
    Arguments: plan; engine, complete but for loop and observers.
    Returns: a Loop.
    Example:
        class LastLoss:
            def train_batch(self, data):
                for _ in range(engine.gradient_accumulation_steps()):
                    loss = engine(next(data))
                    engine.backward(loss)
                    engine.step()
                return loss.detach()

            def eval_batch(self, data):
                return engine(next(data)).detach()

        return LastLoss()
    """


@hookspec
def dsx_observers(plan: Plan, engine: Engine) -> Iterable[Observer]:  # type: ignore[empty-body]
    """Give observers of forward, backward, step and save.

    Called: once per engine, last in building; collect.
    Arguments: plan; engine, complete but for its observers.
    Returns: observers, bound once; nothing when there are none.
    Example:
        class Applied(Observer):
            count = 0

            def after_step(self, engine, *, updated):
                self.count += updated

        yield Applied()
    """


# State -------------------------------------------------------------------------------------------------------------


@hookspec
def dsx_checkpoint_parts(engine: Engine) -> Iterable[CheckpointPart]:  # type: ignore[empty-body]
    """Add named, versioned parts to the engine's checkpoints.

    Called: at each save and load; collect.
    Arguments: engine.
    Returns: parts with unique names; nothing when the plugin keeps no state.
    Example:
        def load(state):
            engine.train(state["training"])

        yield CheckpointPart("acme", 1, lambda: {"training": engine.module.training}, load)
    """


# Care --------------------------------------------------------------------------------------------------------------


@hookspec
def dsx_report() -> Iterable[ReportRow]:  # type: ignore[empty-body]
    """Say how the plugin fares on this machine.

    Called: by ``dsx report``; each.
    Arguments: none.
    Returns: rows; nothing when there is nothing to say.
    Example:
        import os

        yield ReportRow("acme", "processors", str(os.cpu_count()), good=os.cpu_count() > 1, note="one is slow")
    """


@hookspec
def dsx_teardown(engine: Engine) -> None:
    """Release what the plugin holds for this engine.

    Called: when an engine closes; each.
    Arguments: engine, its driver and observers closed, its groups still open.
    Returns: nothing.
    Example:
        import logging

        for handler in list(logging.getLogger("acme").handlers):
            logging.getLogger("acme").removeHandler(handler)
            handler.close()
    """
