"""An observer: told of the engine's steps, bound once. This one speaks up when the gradient norm jumps.

Turned on by ``"norm_watch": {"times": 10}``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dsx.engine.observers import Observer as ObserverBase
from dsx.plugin import Observer, PluginSpec, Section, hookimpl

if TYPE_CHECKING:
    from dsx.engine.engine import Engine
    from dsx.planning.plan import Plan

LOGGER = logging.getLogger("norm_watch")


class WatchSection(Section):
    """``norm_watch``: a warning where the gradient norm is many times its running mean."""

    times: float | None = Field(default=None, gt=1)
    """How many times. None: nothing is watched."""


SPEC = PluginSpec(name="example-observer", api=1, summary="watches the norm", sections={"norm_watch": WatchSection})


class NormWatch(ObserverBase):
    """Keeps a running mean of the norm, and warns of updates far above it."""

    def __init__(self, times: float) -> None:
        self.times = times
        self.mean: float | None = None

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Compare, then take the new norm into the mean. A skipped update has no norm worth keeping."""
        norm = engine.get_global_grad_norm()
        if not updated or norm is None:
            return
        if self.mean is not None and norm > self.times * self.mean:
            LOGGER.warning("update %d: gradient norm %.3g, %.3g on average", engine.global_steps, norm, self.mean)
        self.mean = norm if self.mean is None else 0.9 * self.mean + 0.1 * norm


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_observers(plan: Plan) -> Iterator[Observer]:
    """One on rank 0, where it is wanted."""
    times = plan.config.section(WatchSection).times
    if times is not None and plan.world.rank == 0:
        yield NormWatch(times)
