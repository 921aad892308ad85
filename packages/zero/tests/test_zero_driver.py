"""The laws of every driver, on real ranks: parity, gathering, gradients by name, reload, life."""

from __future__ import annotations

import pytest
from zero_helpers import BF16, FP16, SMALL, STAGES

from dsx.testing import check_driver


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_stage_keeps_the_laws(stage: int, world: int) -> None:
    check_driver({"zero_optimization": {"stage": stage, **SMALL}}, world=world)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_keeps_the_laws_in_low_precision(stage: int) -> None:
    zero = {"zero_optimization": {"stage": stage, **SMALL}}
    check_driver({**zero, "bf16": dict(BF16)}, tolerance=4e-3)
    check_driver({**zero, "fp16": dict(FP16)}, tolerance=4e-4, updates=2)
