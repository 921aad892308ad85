"""A small engine to look at, and its updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import dsx
from dsx.plugin.manager import plugin_manager

MICRO = 2
LAYERS = 3


@contextmanager
def engine_of(**config: Any) -> Iterator[dsx.Engine]:
    """An engine of the core alone over three layers, with SGD unless the configuration says otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(LAYERS)))
    settings = {
        "train_micro_batch_size_per_gpu": MICRO,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        **config,
    }
    with dsx.initialize(model=model, config=settings, plugins=plugin_manager(block=["zero", "native"]))[0] as engine:
        yield engine


def train(engine: dsx.Engine, *, micro_batches: int = 1) -> list[float]:
    """So many micro-batches; gives their losses."""
    losses = []
    for index in range(micro_batches):
        loss = engine(torch.full((MICRO, 4), 1.0 + index)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses
