"""Losses and weights of dsx equal those of plain PyTorch on one rank, whatever shards, accumulates or rounds.

The reference is `dsx.testing.parity.plain`: one process sees every rank's micro-batches one after the other, adds up
their gradients, divides by their number and updates fp32 weights with torch's own AdamW.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dsx
from benchmarks.processes import run_ranks
from benchmarks.table import Row, at_most
from dsx.testing.parity import plain, steered

STAGES, ACCUMULATIONS, WORLDS = (0, 1, 2, 3), (1, 3), (1, 2, 3)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODELS = ("shared", "unused", "groups")
UPDATES, MICRO, WORDS = 4, 2, 17
ADAM: Mapping[str, Any] = {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-4, "weight_decay": 0.1}
LIMITS = {"fp32": 1e-6, "bf16": 5e-4, "fp16": 1e-4}
"""Half precision rounds weights to 8 and 11 bits before each forward; where a sum in another order tips such a
rounding, one weight differs by its last bit, and that is all these limits leave room for."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix that one world size runs."""

    stage: int
    accumulation: int
    dtype: str
    model: str


class Net(nn.Module):
    """A small network of odd sizes: one module used twice, and a parameter that nothing reads if so asked."""

    def __init__(self, *, unused: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 11)
        self.twice = nn.Linear(11, 11)
        self.norm = nn.LayerNorm(11)
        self.head = nn.Linear(11, WORDS)
        if unused:
            self.unread = nn.Parameter(torch.ones(7))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(self.twice(self.embed(x)))
        hidden = torch.tanh(self.twice(hidden) + hidden)
        return F.cross_entropy(self.head(self.norm(hidden)).float(), y)


def make(name: str) -> Net:
    """The model of a case, the same on every call."""
    torch.manual_seed(5)
    return Net(unused=name == "unused")


def groups(model: nn.Module, name: str) -> list[dict[str, Any]]:
    """Parameter groups: one, or a second that neither decays nor learns as fast."""
    named = dict(model.named_parameters())
    if name != "groups":
        return [{"params": list(named.values())}]
    apart = [key for key in named if key.endswith("bias") or key.startswith("norm")]
    rest = [value for key, value in named.items() if key not in apart]
    return [{"params": rest}, {"params": [named[key] for key in apart], "lr": 3e-3, "weight_decay": 0.0}]


def micro_batch(update: int, turn: int, rank: int) -> tuple[Tensor, Tensor]:
    """What one rank sees in one turn of one update."""
    dice = torch.Generator().manual_seed(1000 * update + 10 * turn + rank)
    words = torch.randint(0, WORDS, (2, MICRO), generator=dice)
    return words[0], words[1]


def configuration(case: Case) -> dict[str, Any]:
    """The training of a case as a configuration."""
    precision: dict[str, dict[str, Any]] = {
        "fp32": {},
        "bf16": {"bf16": {"enabled": True}},
        "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
    }
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": case.accumulation,
        "optimizer": {"type": "AdamW", "params": dict(ADAM)},
        "zero_optimization": {"stage": case.stage},
        **precision[case.dtype],
    }


def apart(case: Case, world: int) -> float:
    """The largest difference between dsx and plain PyTorch in losses, gradient norms and final weights."""
    model = make(case.model)
    expected = plain(
        model,
        micro_batch,
        optimizer=torch.optim.AdamW(groups(model, case.model), **ADAM),
        updates=UPDATES,
        accumulation=case.accumulation,
        world=world,
        dtype=DTYPES[case.dtype],
        scale=256.0 if case.dtype == "fp16" else 1.0,
    )
    model = make(case.model)
    engine, *_ = dsx.initialize(model=model, model_parameters=groups(model, case.model), config=configuration(case))
    with engine:
        return steered(engine, micro_batch, updates=UPDATES).apart(expected)


def run_cases(cases: Iterable[Mapping[str, Any]]) -> list[float]:
    """What one rank does: every case, one engine after the other."""
    torch.set_num_threads(1)
    return [apart(Case(**fields), int(os.environ["WORLD_SIZE"])) for fields in cases]


def deviations(cases: list[Case], world: int) -> list[float]:
    """The largest difference of each case, over all ranks."""
    ranks = run_ranks("benchmarks.parity:run_cases", {"cases": [asdict(case) for case in cases]}, world=world)
    return [max(found) for found in zip(*ranks, strict=True)]


def rows(*, short: bool) -> list[Row]:
    """One row for each stage, dtype and world size: the worst over accumulation and models."""
    worlds = (2,) if short else WORLDS
    table = []
    for world in worlds:
        cases = [Case(*values) for values in itertools.product(STAGES, ACCUMULATIONS, DTYPES, MODELS)]
        measured = dict(zip(cases, deviations(cases, world), strict=True))
        for dtype, stage in itertools.product(DTYPES, STAGES):
            cell = {case: value for case, value in measured.items() if (case.dtype, case.stage) == (dtype, stage)}
            worst = max(cell, key=lambda case: cell[case])
            table.append(
                at_most(
                    f"{dtype}, stage {stage}, {world} rank(s)",
                    cell[worst],
                    LIMITS[dtype],
                    unit="largest difference",
                    goal="losses and weights of plain PyTorch",
                    note=f"worst of {len(cell)}: {worst.model}, accumulation {worst.accumulation}",
                )
            )
    return table
