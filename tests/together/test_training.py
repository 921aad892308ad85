"""A third party's optimizer, ZeRO and native kernels in one training: parity, and checkpoints across sets of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from acme_sparse_adam import NAME
from acme_sparse_adam.optimizer import SparseAdam
from torch import nn

import dsx
from dsx.engine.engine import Engine
from dsx.errors import DsxError
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry
from dsx.testing import Awkward, Course, awkward_batch, plain, steered
from dsx.testing.awkward import MICRO
from dsx_native import kernels as native_kernels

Ranks = Callable[..., list[Any]]
STAGES = (0, 1, 2, 3)
UPDATES = 3
PARAMS: Mapping[str, float] = {"lr": 1e-2, "eps": 1e-4}
MAKERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {NAME: SparseAdam, "AdamW": torch.optim.AdamW}
"""Ours by name, and what plain PyTorch trains with."""
WITHOUT_NATIVE = {"DSX_PLUGINS_BLOCK": "native"}
WITHOUT_STRANGER = {"DSX_PLUGINS_BLOCK": NAME}


def engine_of(stage: int, optimizer: str, *, seed: int = 0, **more: Any) -> Engine:
    """The awkward model in this stage, cut into several buckets."""
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.7,
        "optimizer": {"type": optimizer, "params": dict(PARAMS)},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 60, "stage3_param_persistence_threshold": 0},
        **more,
    }
    return dsx.initialize(model=Awkward(seed=seed), config=config)[0]


def reference(optimizer: str, *, updates: int = UPDATES) -> Course:
    """Plain PyTorch on one process that sees what two ranks see."""
    model: nn.Module = Awkward()
    made = MAKERS[optimizer](model.parameters(), **PARAMS)
    return plain(model, awkward_batch, optimizer=made, updates=updates, accumulation=2, world=2, clip=0.7)


def gaps() -> dict[str, float]:
    """How far each optimizer is from plain PyTorch in each stage, with the third party's observer looking on."""
    found = {}
    for optimizer, stage in itertools.product(MAKERS, STAGES):
        with engine_of(stage, optimizer, **{NAME: {"report_every": 2}}) as engine:
            found[f"{optimizer} {stage=}"] = steered(engine, awkward_batch, updates=UPDATES).apart(reference(optimizer))
    return found


@pytest.mark.parametrize("environment", [{}, WITHOUT_NATIVE], ids=["native", "torch"])
def test_every_stage_trains_as_plain_torch(environment: dict[str, str], ranks: Ranks) -> None:
    for found in ranks(gaps, world=2, env=environment):
        assert len(found) == len(MAKERS) * len(STAGES)
        assert {case: gap for case, gap in found.items() if not gap <= 1e-6} == {}


def test_each_brings_what_it_is_there_for(plugins: Callable[..., Any]) -> None:
    registry = Registry(plugins())
    assert set(plugins().names) == {"core", "native", "zero", NAME}
    assert registry.kernel("adam_step", like=torch.ones(1)) is native_kernels.adam_step
    without = Registry(plugin_manager(block=["native"]))
    assert without.kernel("adam_step", like=torch.ones(1)) is not native_kernels.adam_step


def test_a_strangers_need_is_heard_by_all() -> None:
    """What the third party needs is refused before anything starts, whoever else is there."""
    with pytest.raises(DsxError, match="nearest legal") as caught:
        engine_of(2, NAME, fp16={"enabled": True})
    assert NAME in str(caught.value)


# Checkpoints across sets of plugins ---------------------------------------------------------------------------------


def saved(folder: str, stage: int, optimizer: str) -> Course:
    """Two updates, a save, and one update more."""
    with engine_of(stage, optimizer, **{NAME: {"report_every": 1}}) as engine:
        steered(engine, awkward_batch, updates=2)
        engine.save_checkpoint(folder, "two")
        return steered(engine, later, updates=1)


def resumed(folder: str, stage: int, optimizer: str) -> Course:
    """What an engine with other weights makes of that checkpoint in one update."""
    with engine_of(stage, optimizer, seed=3) as engine:
        engine.load_checkpoint(folder, "two")
        return steered(engine, later, updates=1)


def later(update: int, turn: int, rank: int) -> Any:
    """The batches of the third update."""
    return awkward_batch(update + 2, turn, rank)


@pytest.mark.parametrize(
    ("optimizer", "before", "after"),
    [
        ("AdamW", {}, WITHOUT_NATIVE),
        ("AdamW", WITHOUT_NATIVE, {}),
        ("AdamW", {}, WITHOUT_STRANGER),
        (NAME, {}, WITHOUT_NATIVE),
    ],
    ids=["saved with native", "loaded with native", "saved beside a stranger", "a stranger's states"],
)
def test_a_checkpoint_loads_with_other_plugins(
    optimizer: str, before: dict[str, str], after: dict[str, str], ranks: Ranks, tmp_path: Path
) -> None:
    for stage, other in ((2, 3), (3, 0)):
        folder = str(tmp_path / str(stage))
        wanted, _ = ranks(saved, folder, stage, optimizer, world=2, env=before)
        for found in ranks(resumed, folder, other, optimizer, world=2, env=after):
            assert found.apart(wanted) <= 1e-6


def loaded_without_zero(folder: str) -> Course:
    """One rank and the core alone go on from what two ranks saved; the one sees both ranks' batches."""

    def both(update: int, turn: int, rank: int) -> Any:
        return later(update, turn // 2, turn % 2)

    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.7,
        "optimizer": {"type": "AdamW", "params": dict(PARAMS)},
    }
    with dsx.initialize(model=Awkward(seed=3), config=config)[0] as engine:
        assert engine.plugins.names == ("core",)
        engine.load_checkpoint(folder, "two")
        return steered(engine, both, updates=1)


def test_the_core_alone_loads_what_all_have_saved(ranks: Ranks, tmp_path: Path) -> None:
    wanted, _ = ranks(saved, str(tmp_path), 3, "AdamW", world=2)
    environment = {"DSX_PLUGINS_BLOCK": f"zero,native,{NAME}"}
    (found,) = ranks(loaded_without_zero, str(tmp_path), world=1, env=environment)
    assert found.apart(wanted) <= 1e-6
