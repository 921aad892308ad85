"""Driver conformance: on real ranks, a configuration trains as plain PyTorch does on one process."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from dsx.testing.driver_ranks import Task, observe
from dsx.testing.ranks import RanksFailed, run_ranks
from dsx.testing.verdict import fail

ADAM: Mapping[str, Any] = {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}}
"""The optimizer where the configuration names none; its eps keeps rounding from being magnified."""

_OURS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")


def check_driver(
    config: Mapping[str, Any],
    *,
    plugins: Sequence[str | ModuleType] = (),
    world: int = 2,
    updates: int = 3,
    tolerance: float = 1e-6,
) -> None:
    """Check the driver (and all else) that a configuration chooses, on ``world`` gloo ranks. Raises AssertionError.

    config: as for ``dsx.initialize``; batch sizes, accumulation and clipping are the check's, AdamW is its optimizer
    where none is named. plugins: modules, or their names, imported on each rank. tolerance: by how much losses, norms
    and weights may be away from plain PyTorch's; wider for low precision. Laws, for :class:`~dsx.testing.Awkward`:

    - *parity*: losses, gradient norms and weights of some updates are plain PyTorch's: with one micro-batch and
      ``loss.backward()``, and with two and clipping.
    - *same*: all ranks hold the same weights, under the names and shapes of the model's own state dictionary.
    - *gathered*: within ``gathered`` parameters are whole; one writer's edits are seen by all.
    - *gradient*: whole gradients by name are plain PyTorch's; what is discarded leaves no trace.
    - *reload*: a checkpoint, loaded into another engine, goes on with the same bits.
    - *bytes*: the state at rest is about as large as was predicted.
    - *close*: the module is whole and usable afterwards; no process group is left.
    """
    chosen = {key: copy.deepcopy(value) for key, value in config.items() if key not in _OURS}
    chosen.setdefault("optimizer", copy.deepcopy(dict(ADAM)))
    names = tuple(plugin if isinstance(plugin, str) else plugin.__name__ for plugin in plugins)
    with tempfile.TemporaryDirectory(prefix="dsx-driver-") as folder:
        task = Task(chosen, names, updates, tolerance, folder)
        try:
            answers = run_ranks(observe, task, world=world, deadline=120.0)
        except RanksFailed as error:
            first = error.failures[0]
            cause = first.reason.rstrip().rpartition("\n")[2]
            fail(f"with {dict(config)} on {world} ranks: rank {first.rank} raised {cause}\n{error}")
    broken: dict[str, list[int]] = {}
    for rank, found in enumerate(answers):
        for problem in found:
            broken.setdefault(problem, []).append(rank)
    if broken:
        lines = [f"{problem} (ranks {', '.join(map(str, where))})" for problem, where in broken.items()]
        fail(f"with {dict(config)} on {world} ranks: " + "\n".join(lines))
