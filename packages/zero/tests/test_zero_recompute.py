"""Recomputed activations change no gradient in any stage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zero_helpers import SMALL, STAGES, adamw, config, engine_of

from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import plain, steered, weights_apart

Ranks = Callable[..., list[Any]]
KINDS = pytest.mark.parametrize("use_reentrant", [False, True])


class Recomputed(Awkward):
    """The awkward model, whose blocks keep no activations."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return out


def recomputed(use_reentrant: bool) -> dict[str, float]:
    model = Awkward()
    expected = plain(model, awkward_batch, optimizer=adamw(model.parameters()), updates=3, accumulation=2, world=2)
    gaps = {}
    tight = {**SMALL, "stage3_max_live_parameters": 60, "stage3_max_reuse_distance": 0}
    for stage, zero in itertools.product(STAGES, (SMALL, tight)):
        settings = config(stage, zero=zero, gradient_accumulation_steps=2)
        with engine_of(Recomputed(use_reentrant=use_reentrant), settings) as engine:
            gaps[f"{stage=} {zero is tight}"] = steered(engine, awkward_batch, updates=3).apart(expected)
    return gaps


@KINDS
def test_checkpointed_blocks_learn_as_others(use_reentrant: bool, ranks: Ranks) -> None:
    for gaps in ranks(recomputed, use_reentrant):
        assert {case: gap for case, gap in gaps.items() if not gap <= 1e-6} == {}


class Repeated(nn.Module):
    """One layer applied six times, each time checkpointed."""

    def __init__(self, *, use_reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.enter = nn.Linear(5, 7)
        self.layer = nn.Linear(7, 7)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(6):
            if self.use_reentrant is None:
                x = torch.tanh(self.layer(x))
            else:
                x = torch.tanh(checkpoint(self.layer, x, use_reentrant=self.use_reentrant))
        return (x[:, :2].float() - y.float()).square().mean()


def repeated(use_reentrant: bool) -> list[float]:
    model = Repeated(use_reentrant=None)
    (sum(model(*awkward_batch(0, 0, rank)) for rank in range(2)) / 2).backward()
    expected = {name: param.grad for name, param in model.named_parameters()}
    gaps = []
    for stage in STAGES:
        with engine_of(Repeated(use_reentrant=use_reentrant), config(stage)) as engine:
            engine.backward(engine(*awkward_batch(0, 0, engine.data_group.rank)))
            gaps.append(weights_apart({name: engine.gradient(name) for name in expected}, expected))
    return gaps


@KINDS
def test_a_layer_applied_six_times_under_checkpointing(use_reentrant: bool, ranks: Ranks) -> None:
    """B22: the same gradient as without checkpointing, in every stage and both kinds."""
    for gaps in ranks(repeated, use_reentrant):
        assert max(gaps) <= 1e-6, gaps
