"""What the tests of stages 0 to 3 share: configurations that cut even tiny models into many buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import dsx
from dsx.engine.engine import Engine
from dsx.testing.awkward import MICRO
from dsx.testing.parity import BatchOf

STAGES = (0, 1, 2, 3)
ADAM: Mapping[str, Any] = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}
SMALL: Mapping[str, Any] = {
    "reduce_bucket_size": 60,
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 120,
}
"""Several buckets a model, nothing persistent, and prefetching across units."""
FP16: Mapping[str, Any] = {"enabled": True, "initial_scale_power": 8}
BF16: Mapping[str, Any] = {"enabled": True}


def config(stage: int, *, zero: Mapping[str, Any] = SMALL, **more: Any) -> dict[str, Any]:
    """A configuration for the awkward model in this stage; AdamW unless ``optimizer`` says otherwise."""
    chosen = {
        "train_micro_batch_size_per_gpu": MICRO,
        "zero_optimization": {"stage": stage, **zero},
        "optimizer": {"type": "AdamW", "params": dict(ADAM)},
        **more,
    }
    return {key: value for key, value in chosen.items() if value is not None}


@contextmanager
def engine_of(model: nn.Module, settings: Mapping[str, Any], **more: Any) -> Iterator[Engine]:
    """An engine for a while."""
    engine = dsx.initialize(model=model, config=settings, **more)[0]
    with engine:
        yield engine


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Every other parameter learns slower and does not decay."""
    params = list(model.parameters())
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 3e-3, "weight_decay": 0.0}]


def ranks_as_turns(batch: BatchOf, world: int) -> BatchOf:
    """What ``world`` ranks see side by side, seen by one rank turn after turn."""

    def seen(update: int, turn: int, rank: int) -> Any:
        return batch(update, turn // world, turn % world)

    return seen


def adamw(groups: Any) -> torch.optim.Optimizer:
    """The reference for ``config``."""
    return torch.optim.AdamW(groups, **ADAM)
