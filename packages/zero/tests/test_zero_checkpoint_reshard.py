"""A checkpoint of any stage and number of ranks goes on in any other, for optimizers of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zero_models import apart, engine_of, rank, world

import dsx
from dsx.checkpoint.source import Source
from dsx.checkpoint.stores import DirectoryStore
from dsx.checkpoint.torn import choose_tag, read_manifest
from dsx.testing.ranks import run_ranks

ROWS = 12
"""The global batch, divisible by 1, 2, 3 and 4 ranks."""


class Odd(nn.Module):
    """Parameters of 7, 13, 1 and 30 elements and some matrices, one of them tied, one frozen; and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seven = nn.Parameter(torch.randn(7))
        self.thirteen = nn.Parameter(torch.randn(13))
        self.one = nn.Parameter(torch.ones(()))
        self.thirty = nn.Parameter(torch.randn(5, 6) / 2)
        self.first = nn.Linear(6, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.last = nn.Linear(7, 7)
        self.tied = nn.Linear(7, 7)
        self.tied.weight = self.last.weight
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        x = torch.tanh(self.first(x @ (self.thirty.t() @ self.thirty)) * self.seven)
        x = self.tied(torch.tanh(self.last(self.frozen(x)))) * self.one
        return F.linear(x, self.thirteen[:7].outer(self.thirteen[6:13]))


def odd(seed: int = 0) -> Odd:
    torch.manual_seed(seed)
    return Odd()


def groups_of(model: Odd) -> list[dict[str, Any]]:
    """Three groups of unequal size and settings."""
    named = {name: param for name, param in model.named_parameters() if param.requires_grad}
    small = [named.pop("seven"), named.pop("unused")]
    one = [named.pop("one")]
    return [
        {"params": small, "lr": 3e-2},
        {"params": one, "lr": 1e-2, "weight_decay": 0.1},
        {"params": list(named.values())},
    ]


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"lr": 1e-2}),
    "momentum": ("SGD", {"lr": 1e-2, "momentum": 0.9}),
    "lamb": ("Lamb", {"lr": 1e-2}),
    "muon": ("Muon", {"lr": 1e-2}),
    "rmsprop": ("RMSprop", {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    "adagrad": ("torch.Adagrad", {"lr": 1e-2, "initial_accumulator_value": 0.1}),
    "nadam": ("NAdam", {"lr": 1e-3}),
}


def config_of(stage: int, optimizer: str) -> dict[str, Any]:
    kind, params = OPTIMIZERS[optimizer]
    return {
        "train_batch_size": ROWS,
        "train_micro_batch_size_per_gpu": ROWS // world(),
        "comm_timeout": 20.0,
        "optimizer": {"type": kind, "params": params},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 2},
    }


def updates(engine: dsx.Engine, which: range) -> None:
    for update in which:
        numbers = torch.Generator().manual_seed(update)
        inputs, targets = torch.randn(ROWS, 6, generator=numbers), torch.randn(ROWS, 7, generator=numbers)
        mine = slice(rank() * (ROWS // world()), (rank() + 1) * (ROWS // world()))
        engine.backward(((engine(inputs[mine]) - targets[mine]) ** 2).mean())
        engine.step()


def tensors_in(root: Path, tag: str | None = None) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its full name, whole."""
    store = DirectoryStore(root)
    manifest = read_manifest(store, choose_tag(store, tag))
    source = Source(store, manifest)
    found = {name: source.empty(name) for name in manifest.tensors}
    source.fill(found)
    return found


def _write(root: str) -> None:
    """Two ranks: a checkpoint after 3 updates and one after 6, for each stage and optimizer."""
    for optimizer in OPTIMIZERS:
        for stage in range(4) if optimizer == "adam" else (0, 1 if optimizer in ("momentum", "nadam") else 3):
            model = odd()
            config = config_of(stage, optimizer)
            with engine_of(model, config, model_parameters=groups_of(model)) as engine:
                updates(engine, range(3))
                engine.save_checkpoint(f"{root}/{optimizer}-{stage}", "three")
                updates(engine, range(3, 6))
                engine.save_checkpoint(f"{root}/{optimizer}-{stage}", "six", save_latest=False)


def _go_on(root: str, pairs: list[tuple[str, int, int]]) -> dict[tuple[str, int, int], float]:
    """Each (optimizer, stage that wrote, stage that reads): how far weights and moments end from the unbroken run's."""
    found = {}
    for optimizer, wrote, reads in pairs:
        written = Path(root) / f"{optimizer}-{wrote}"
        model = odd(seed=5)
        with engine_of(model, config_of(reads, optimizer), model_parameters=groups_of(model)) as engine:
            assert engine.load_checkpoint(written) == (written / "three", {})
            assert engine.global_steps == 3
            if (optimizer, reads) == ("adam", 3) or optimizer in ("muon", "nadam"):
                engine.save_checkpoint(f"{root}/again-{world()}", "three")
                same = apart(tensors_in(Path(root) / f"again-{world()}"), tensors_in(written))
                assert same == 0.0, f"what was loaded is not what was written: {optimizer}, {wrote}, {reads}"
            updates(engine, range(3, 6))
            engine.save_checkpoint(f"{root}/again-{world()}", "six")
            found[optimizer, wrote, reads] = apart(
                tensors_in(Path(root) / f"again-{world()}", "six"), tensors_in(written, "six")
            )
    return found


PAIRS = {
    1: [("adam", 0, 3), ("adam", 3, 0), ("momentum", 1, 3), ("lamb", 3, 1), ("muon", 3, 2), ("nadam", 1, 0)],
    2: [("adam", 1, 2), ("lamb", 0, 3), ("rmsprop", 3, 0), ("nadam", 0, 2)],
    3: [("adam", 3, 2), ("adam", 2, 3), ("muon", 0, 3), ("rmsprop", 0, 3), ("adagrad", 3, 1), ("nadam", 1, 0)],
    4: [("adam", 0, 1), ("adam", 3, 3), ("lamb", 3, 3)],
}


def test_a_run_goes_on_at_any_number_of_ranks_in_any_stage(tmp_path: Path) -> None:
    """B44, B45: weights and moments are the written ones to the bit, and the run goes on as the unbroken one."""
    run_ranks(_write, str(tmp_path), world=2)
    for size, pairs in PAIRS.items():
        found = run_ranks(_go_on, str(tmp_path), pairs, world=size)[0]
        assert list(found) == pairs
        assert max(found.values()) < 1e-5, (size, found)
