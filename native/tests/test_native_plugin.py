"""The native library as a plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry
from dsx_native import _core, kernels
from dsx_native.choice import SCORES, score
from dsx_native.plugin import dsx_report


def test_it_is_found_and_preferred_where_it_can_run() -> None:
    registry = Registry(plugin_manager(), kernels="")
    assert registry.kernel("adam_step", like=torch.ones(1)) is kernels.adam_step
    assert registry.kernel("adam_step", like=torch.ones(1, dtype=torch.bfloat16)) is kernels.adam_step
    assert registry.kernel("adam_step", like=torch.ones(1, dtype=torch.float64)) is not kernels.adam_step
    assert registry.kernel("adam_step", like=torch.ones(1, device="meta")) is not kernels.adam_step


def test_it_can_be_done_without() -> None:
    registry = Registry(plugin_manager(), kernels="adam_step=torch")
    assert registry.kernel("adam_step", like=torch.ones(1)) is not kernels.adam_step


@pytest.mark.parametrize("isa", _core.available())
def test_a_wider_instruction_set_scores_higher(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_NATIVE_ISA", isa)
    assert score().value == SCORES[isa] > 1
    assert isa in score().why
    values = [SCORES[name] for name in _core.available()]
    assert values == sorted(values)


def test_the_report_names_instruction_set_builds_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in dsx_report()}
    assert rows["instruction set"].value == _core.available()[-1]
    assert rows["instruction set"].good
    assert set(rows["built"].value.split(", ")) == set(_core.built()) >= set(_core.available())
    assert _core.compiler in rows["built"].note
    monkeypatch.setenv("DSX_NATIVE_ISA", "mmx")
    broken = next(iter(dsx_report()))
    assert not broken.good
    assert "'mmx' was asked for" in broken.note


def test_a_wish_that_cannot_be_met_does_not_fall_back_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_NATIVE_ISA", "mmx")
    assert score().value > 1
    assert "'mmx' was asked for" in score().why


def test_the_library_links_no_pytorch() -> None:
    library = Path(_core.__file__).read_bytes()
    for name in (b"libtorch", b"libc10", b"libgomp", b"libiomp"):
        assert name not in library


def test_it_leaves_the_processor_as_it_was() -> None:
    """Loading must not turn subnormal numbers off for the process, as linking with -ffast-math would."""
    script = "from dsx_native import _core; assert 5e-324 * 1.0 == 5e-324 != 0.0"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
