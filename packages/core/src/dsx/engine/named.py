"""Components that a configuration asks for by name: looked up on every rank before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsx.monitor.all import check_monitors
from dsx.plugin.kinds import ACTIVATION_CHECKPOINT, CODEC, PARTITIONER, STORE
from dsx.plugin.types import Kind

if TYPE_CHECKING:
    from dsx.planning.plan import Plan
    from dsx.registry.registry import Registry


def asked_for(plan: Plan) -> Iterator[tuple[Kind[Any], str]]:
    """Each (kind, name) that the core's keys and the model passes ask for; optimizer and schedule speak for themselves.

    Names that have no effect are among them: a mistake shows when it is made, not when the key beside it is set.
    """
    config = plan.config
    yield STORE, config.checkpoint.store
    yield ACTIVATION_CHECKPOINT, config.activation_checkpointing.method
    yield PARTITIONER, config.activation_checkpointing.partitioner
    if config.gradient_codec is not None:
        yield CODEC, config.gradient_codec
    for item in plan.passes:
        yield from item.uses


def refuse_unknown_components(plan: Plan, registry: Registry) -> None:
    """Raise the registry's PluginError for a name that nobody offers. Only monitors are imported, for their params."""
    for kind, name in asked_for(plan):
        registry.component(kind, name)
    check_monitors(plan.config, registry=registry)
