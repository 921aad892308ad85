"""Families of parameters: who reduces, who shards, who counts."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_helpers import STAGES, config, engine_of

from dsx.plugin import API_VERSION, Family, PluginSpec, hookimpl

Ranks = Callable[..., list[Any]]
SGD = {"type": "SGD", "params": {"lr": 1.0}}


class Experts(nn.Module):
    """Experts of this rank, and a dense part that all ranks share. Gradients are what the batch says."""

    def __init__(self, experts: int, *, dense: bool) -> None:
        super().__init__()
        self.experts = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(experts)])
        if dense:
            self.dense = nn.Parameter(torch.zeros(5))

    def forward(self, gradients: Tensor, dense: float) -> Tensor:
        loss = sum(
            (expert[0] * gradient for expert, gradient in zip(self.experts, gradients, strict=True)), torch.zeros(())
        )
        return loss + self.dense[3] * dense if hasattr(self, "dense") else loss


def expert_plugin() -> types.ModuleType:
    """Says that experts are split over the data ranks: each rank has other ones, and reduces them with nobody."""
    module = types.ModuleType("fake_experts")
    spec = PluginSpec(name="experts", api=API_VERSION, summary="made for a test")
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]

    def dsx_param_families() -> Iterator[Family]:
        yield Family(
            "expert",
            members=lambda name, param: "experts." in name,
            split_over=("data",),
            reduce_over=(),
            shard_over=(),
        )

    module.dsx_param_families = hookimpl(dsx_param_families)  # type: ignore[attr-defined]
    return module


def norms(placement: tuple[tuple[float, ...], ...], dense: bool) -> list[tuple[float, list[float], float]]:
    """By stage: (norm, what each expert of this rank moved by, what the dense part moved by)."""
    found = []
    for stage in STAGES:
        rank = int(torch.distributed.get_rank())
        own = placement[rank]
        model = Experts(len(own), dense=dense)
        with engine_of(model, config(stage, optimizer=SGD), plugins=[expert_plugin()]) as engine:
            # each rank's loss is one of two that are averaged
            engine.backward(engine(2 * torch.tensor(own), 12.0))
            engine.step()
            with engine.gathered():
                moved = [-float(expert[0].detach()) for expert in model.experts]
                shared = -float(model.dense[3].detach()) if dense else 0.0
            found.append((engine.get_global_grad_norm(), moved, shared))
    return found


@pytest.mark.parametrize(
    "placement", [((3.0,), (4.0,)), ((4.0,), (3.0,)), ((3.0, 4.0), (0.0, 0.0)), ((0.0, 3.0), (4.0, 0.0))]
)
def test_the_norm_counts_each_owner_once(placement: tuple[tuple[float, ...], ...], ranks: Ranks) -> None:
    """B27: experts with gradients 3 and 4 on whichever ranks have the norm 5, with a dense gradient of 12 on both 13;
    an expert's gradient is divided by the number of losses, not by the ranks that sum it."""
    for dense, norm in ((False, 5.0), (True, 13.0)):
        for rank, stages in enumerate(ranks(norms, placement, dense)):
            for seen, moved, shared in stages:
                assert seen == pytest.approx(norm, rel=1e-6)
                assert moved == list(placement[rank])
                assert shared == (12.0 if dense else 0.0)
