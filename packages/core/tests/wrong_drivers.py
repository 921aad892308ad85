"""A plugin whose driver is plain data parallelism, right or wrong in the way that section ``own`` says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsx.engine.build import cut_buckets, replicated_policy
from dsx.flat.driver import FlatDriver
from dsx.plugin import CheckpointPart, Claim, Norm, PluginSpec, Section, StateBytes, hookimpl, sets


class Own(Section):
    """The section."""

    wrong: str = ""


class OwnDriver(FlatDriver):
    """Right, unless told otherwise."""

    wrong = ""

    def update(self, *, factor: float = 1.0) -> None:
        super().update(factor=0.5 * factor if self.wrong == "factor" else factor)
        if self.wrong == "apart" and self.world.rank == 1:
            with torch.no_grad():
                next(self.model.parameters()).add_(1e-9)

    def norm(self, *, order: float = 2.0) -> Norm:
        if self.wrong == "raises":
            raise RuntimeError("no norm today")
        return super().norm(order=order)

    def discard(self) -> None:
        if self.wrong != "keeps":
            super().discard()

    def gradient(self, name: str) -> Tensor | None:
        found = super().gradient(name)
        return 2 * found if found is not None and self.wrong == "gradient" else found

    def gathered(
        self, names: Sequence[str] | None = None, *, writer: int | None = None
    ) -> AbstractContextManager[None]:
        return nullcontext() if self.wrong == "silent writer" else super().gathered(names, writer=writer)

    def full_state_dict(self) -> dict[str, Tensor]:
        state = super().full_state_dict()
        if self.wrong == "names":
            del state["leave.weight"]
        return state

    def parts(self, *, loading: bool = False) -> list[CheckpointPart]:
        return [part for part in super().parts(loading=loading) if self.wrong != "forgets" or not part.optimizer]

    def state_bytes(self) -> tuple[StateBytes, StateBytes]:
        predicted, counted = super().state_bytes()
        return predicted, replace(counted, parameters=0, optimizer=0) if self.wrong == "bytes" else counted

    def close(self, *, whole: bool = True) -> None:
        super().close(whole=whole)
        if self.wrong == "spoils":
            with torch.no_grad():
                next(self.model.parameters()).zero_()


@hookimpl
def dsx_plugin() -> PluginSpec:
    return PluginSpec(name="own", api=1, summary="a driver", sections={"own": Own})


@hookimpl
def dsx_claims() -> Iterator[Claim]:
    yield sets("driver", "own", why="the plugin is there")


@hookimpl
def dsx_make_driver(plan: Any, model: Any, families: Any, make_inner: Any, mesh: Any) -> OwnDriver:
    policy = replicated_policy(plan)
    buckets = cut_buckets(
        plan,
        model,
        families,
        make_inner,
        mesh=mesh,
        policy_of=lambda name, param: (policy, "") if param.requires_grad else None,
    )
    driver = OwnDriver(model, buckets, binding=make_inner, mesh=mesh)
    driver.wrong = plan.config.section(Own).wrong
    if driver.wrong == "group":
        dist.new_group()
    return driver
