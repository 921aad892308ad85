"""check_driver passes plain data parallelism, and finds each way of breaking a law."""

from __future__ import annotations

from typing import Any

import pytest
import wrong_drivers

from dsx.testing import check_driver


@pytest.mark.parametrize(
    ("config", "world", "tolerance"),
    [
        ({}, 2, 1e-6),
        ({"optimizer": {"type": "Muon", "params": {"lr": 0.01}}}, 3, 1e-5),
        ({"bf16": {"enabled": True}}, 2, 4e-3),
        ({"fp16": {"enabled": True, "initial_scale_power": 8}}, 1, 4e-4),
    ],
)
def test_plain_data_parallelism_passes(config: dict[str, Any], world: int, tolerance: float) -> None:
    check_driver(config, world=world, tolerance=tolerance)


@pytest.mark.parametrize("plugin", ["wrong_drivers", wrong_drivers])
def test_a_plugins_driver_passes(plugin: Any) -> None:
    check_driver({"own": {}, "gradient_accumulation_steps": 7}, plugins=[plugin], updates=1)


@pytest.mark.parametrize(
    ("wrong", "world", "message"),
    [
        ("factor", 1, "parity: with accumulation 1, clipping 0.0 and loss.backward"),
        ("apart", 2, r"same: ranks hold different weights after an update \(ranks 0, 1\)"),
        ("names", 1, "same: full_state_dict has other names or shapes than the model: leave.weight"),
        ("silent writer", 2, r"gathered: what rank 1 wrote into leave.weight is not seen everywhere \(ranks 0\)"),
        ("gradient", 1, "gradient: that of .* from plain PyTorch's"),
        ("keeps", 1, "gradient: that of .* from plain PyTorch's"),
        ("forgets", 1, "reload: after two more updates these weights differ"),
        ("bytes", 1, "bytes: .* were predicted"),
        ("spoils", 1, "close: parameter stack has lost its last weights"),
        ("group", 1, "close: left behind: .* process groups"),
        ("raises", 1, "rank 0 raised RuntimeError: no norm today"),
    ],
)
def test_each_broken_law_is_found(wrong: str, world: int, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_driver({"own": {"wrong": wrong}}, plugins=["wrong_drivers"], world=world, updates=1)
