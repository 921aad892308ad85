"""A loop, owner of the resource ``loop``: how an update is made of micro-batches. This one drops broken ones.

Turned on by ``"skip_broken_batches": {"enabled": true}``, for ``engine.train_batch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsx.engine.loop import AccumulationLoop, feed, loss_of
from dsx.errors import DataError
from dsx.plugin import Claim, Loop, PluginSpec, Section, hookimpl, sets

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.engine.engine import Engine


class SkipSection(Section):
    """``skip_broken_batches``: micro-batches whose loss is not finite on some rank are left out on every rank."""

    enabled: bool = False
    """Leave them out, and take the next ones in their place."""


SPEC = PluginSpec(
    name="example-loop", api=1, summary="leaves out broken batches", sections={"skip_broken_batches": SkipSection}
)


class SkippingLoop(AccumulationLoop):
    """As many micro-batches an update as ever, but only such as have a finite loss everywhere."""

    skipped = 0

    def train_batch(self, data: Iterator[Any]) -> Tensor:
        """One update; gives the mean loss over the micro-batches that it took, and all data replicas."""
        engine, losses = self.engine, list[Tensor]()
        engine.train()
        for batch in data:
            loss = loss_of(feed(engine, batch))
            if not self._finite_everywhere(loss):
                self.skipped += 1
                continue
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach().float().reshape(()))
            if len(losses) == engine.gradient_accumulation_steps():
                mean = torch.stack(losses).mean()
                engine.data_group.all_reduce(mean, site="mean loss")
                return mean / engine.data_group.size
        raise DataError("the data ended within an update: wrap the loader in dsx.data.RepeatingLoader")

    def _finite_everywhere(self, loss: Tensor) -> bool:
        broken = (~torch.isfinite(loss.detach())).float().reshape(1)
        self.engine.data_group.all_reduce(broken, op="max", site="broken batches")
        return not broken.item()


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_claims(config: DsxConfig) -> Iterator[Claim]:
    """It owns the loop where it is wanted."""
    if config.section(SkipSection).enabled:
        yield sets("loop", "skipping", why="skip_broken_batches.enabled=true")


@hookimpl
def dsx_make_loop(engine: Engine) -> Loop:
    """The loop of this engine."""
    return SkippingLoop(engine)
