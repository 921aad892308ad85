"""Laws of an optimizer in an engine: it trains as plain PyTorch does, and goes on from a checkpoint."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

import dsx
from dsx.testing.awkward import MICRO, Awkward, awkward_batch
from dsx.testing.optimizer_steps import built
from dsx.testing.parity import plain, steered
from dsx.testing.subjects import Subject
from dsx.testing.verdict import hold

UPDATES = 3
TOLERANCE = 1e-4
"""By which losses, norms and weights may be away from plain PyTorch's: another kernel, another order of rounding."""


def check_training(subject: Subject) -> None:
    """An engine of one rank, given the optimizer by its name, trains as the optimizer alone does."""
    model = Awkward()
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    group = {"params": [p for _, p in named], "param_names": [name for name, _ in named]}
    reference = plain(model, awkward_batch, optimizer=built(subject, [group]), updates=UPDATES)
    with _engine(subject, Awkward()) as engine:
        course = steered(engine, awkward_batch, updates=UPDATES)
    gap = course.apart(reference)
    hold(gap <= TOLERANCE, f"an engine's losses, norms or weights are up to {gap:g} from plain PyTorch's")


def check_reload(subject: Subject) -> None:
    """Saved after two updates and loaded into another engine, it goes on with the same bits."""
    with tempfile.TemporaryDirectory(prefix="dsx-optimizer-") as folder:
        with _engine(subject, Awkward()) as engine:
            steered(engine, awkward_batch, updates=2)
            engine.save_checkpoint(folder)
            wanted = steered(engine, awkward_batch, updates=2)
        with _engine(subject, Awkward(seed=9)) as engine:
            engine.load_checkpoint(folder)
            found = steered(engine, awkward_batch, updates=2)
    for name, value in wanted.weights.items():
        same = torch.equal(value, found.weights[name])
        hold(same, f"parameter {name} goes on otherwise after an engine's checkpoint was loaded")


def _engine(subject: Subject, model: Awkward) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "optimizer": {"type": subject.name, "params": dict(subject.params)},
    }
    return dsx.initialize(model=model, config=config, plugins=subject.plugins)[0]
