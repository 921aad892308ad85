"""A part of the engine's checkpoints: state of a plugin's own. This one is a running average of the weights.

Turned on by ``"weight_average": {"decay": 0.999}``; ``engine.stash[AVERAGE].weights`` gives the averages by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from dsx.engine.observers import Observer as ObserverBase
from dsx.engine.stash import StashKey
from dsx.plugin import CheckpointPart, Claim, Observer, PluginSpec, Section, hookimpl, needs

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.engine.engine import Engine


class AverageSection(Section):
    """``weight_average``: a running average of the weights, saved and loaded with them."""

    decay: float | None = Field(default=None, ge=0, lt=1)
    """How much of the average is kept at each update. None: there is none."""


SPEC = PluginSpec(name="example-part", api=1, summary="averages weights", sections={"weight_average": AverageSection})


class WeightAverage(ObserverBase):
    """The average, in fp32 on the weights' device."""

    def __init__(self, engine: Engine, decay: float) -> None:
        self.decay = decay
        self.weights = {name: param.detach().float().clone() for name, param in engine.named_parameters()}

    @torch.no_grad()
    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Move towards the new weights; a skipped update changes nothing."""
        if updated:
            for name, param in engine.named_parameters():
                self.weights[name].lerp_(param.float(), 1.0 - self.decay)

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing is left to do: the tensors that ``state`` gave were filled in place."""


AVERAGE: StashKey[WeightAverage] = StashKey()


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_claims(config: DsxConfig) -> Iterator[Claim]:
    """Each rank averages whole weights."""
    if config.section(AverageSection).decay is not None:
        yield needs("param", "whole", why="weight_average reads whole weights", nearest="leave weight_average out")


@hookimpl
def dsx_observers(engine: Engine) -> Iterator[Observer]:
    """The average, kept where the other hooks find it."""
    decay = engine.config.section(AverageSection).decay
    if decay is not None:
        engine.stash[AVERAGE] = WeightAverage(engine, decay)
        yield engine.stash[AVERAGE]


@hookimpl
def dsx_checkpoint_parts(engine: Engine) -> Iterator[CheckpointPart]:
    """The averages by name. A part is named after its plugin, and has a version of its own."""
    if AVERAGE in engine.stash:
        average = engine.stash[AVERAGE]
        yield CheckpointPart("weight_average", 1, lambda: {"weights": average.weights}, average.load)


@hookimpl
def dsx_teardown(engine: Engine) -> None:
    """Free the memory with the engine."""
    if AVERAGE in engine.stash:
        engine.stash[AVERAGE].weights.clear()
