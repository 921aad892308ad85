"""The examples of docs/extend.md, found by name, and small engines with one of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import dsx
from dsx.plugin.manager import PluginManager, plugin_manager
from examples.extensions import __main__ as listing

EXAMPLES = {module.__name__.rpartition(".")[2]: module for module in listing.examples()}
MICRO = 2
PLAIN = {"train_micro_batch_size_per_gpu": MICRO, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}


def managed(*names: str) -> PluginManager:
    """The core and these examples, found by name as local plugins are."""
    return plugin_manager(extra=[f"examples.extensions.{name}" for name in names], block=["zero", "native"])


def engine_of(name: str, *, model: nn.Module | None = None, **config: Any) -> dsx.Engine:
    """An engine of the core and one example over three small layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))) if model is None else model
    return dsx.initialize(model=model, config={**PLAIN, **config}, plugins=managed(name))[0]


def train(engine: dsx.Engine, updates: int = 1) -> list[float]:
    """So many updates, each on inputs of its own; gives their losses."""
    losses = []
    for index in range(updates):
        loss = engine(torch.linspace(-1, 1 + index, MICRO * 4).view(MICRO, 4)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses
