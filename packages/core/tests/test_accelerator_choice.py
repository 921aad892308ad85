"""The choice of the device, and what the two devices of the core say of themselves."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from dsx.accelerator.base import choose, scores
from dsx.accelerator.cpu import CpuAccelerator
from dsx.accelerator.cuda import CudaAccelerator
from dsx.errors import ConfigError, DsxError, LaunchError
from dsx.plugin.manager import plugin_manager
from dsx.plugin.roles import Accelerator
from dsx.plugin.types import Kind, Score
from dsx.registry.registry import Registry


class _Toy(CpuAccelerator):
    name = "toy"

    @staticmethod
    def score() -> Score:
        return Score(50, "a toy")


class _Absent(CpuAccelerator):
    name = "absent"

    @staticmethod
    def score() -> Score:
        return Score(0, "no such device is plugged in")


class _Three:
    """A registry of three accelerators."""

    known: ClassVar[dict[str, type[Accelerator]]] = {"cpu": CpuAccelerator, "toy": _Toy, "absent": _Absent}

    def get(self, kind: Kind[type[Accelerator]], name: str) -> type[Accelerator]:
        return self.known[name]

    def names(self, kind: Kind[type[Accelerator]]) -> tuple[str, ...]:
        return tuple(self.known)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSX_ACCELERATOR", raising=False)


def test_the_best_score_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(registry=_Three()).name == "toy"
    assert choose("cpu", registry=_Three()).name == "cpu"
    monkeypatch.setenv("DSX_ACCELERATOR", "cpu")
    assert choose(registry=_Three()).name == "cpu"
    assert choose("toy", registry=_Three()).name == "toy"
    assert scores(_Three())["absent"] == Score(0, "no such device is plugged in")


def test_names_that_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match="unknown accelerator 'cpus' .did you mean 'cpu'"):
        choose("cpus", registry=_Three())
    with pytest.raises(DsxError, match="'absent' cannot run here: no such device is plugged in"):
        choose("absent", registry=_Three())


def test_the_core_brings_the_host() -> None:
    registry = Registry(plugin_manager())
    assert choose("cpu", registry=registry).device_type == "cpu"
    assert set(scores(registry)) >= {"cpu", "cuda"}


def test_the_host() -> None:
    host = CpuAccelerator()
    assert host.device(3) == torch.device("cpu")
    assert host.device_count() == 1
    before = host.memory_allocated()
    block = torch.ones(16 * 2**20, dtype=torch.uint8)
    assert before < host.memory_allocated() < host.memory_total()
    assert block[0] == 1
    assert ("native bf16" in host.describe()) == host.native_bf16()


@pytest.mark.parametrize(("line", "native"), [("flags : avx2 avx512_bf16", True), ("Features : neon", False)])
def test_native_bf16_by_the_processors_flags(monkeypatch: pytest.MonkeyPatch, line: str, native: bool) -> None:
    monkeypatch.setattr("dsx.accelerator.cpu._cpuinfo", lambda: ["model name : Toy", line])
    assert CpuAccelerator().native_bf16() is native
    assert CpuAccelerator().describe().startswith("Toy, ")


def test_devices_are_counted_among_the_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """B73: devices 0 and 2 are visible, so local ranks 0 and 1 have one each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    monkeypatch.setattr(CudaAccelerator, "device_count", lambda self: 2)
    device = CudaAccelerator()
    assert [device.device(rank).index for rank in range(2)] == [0, 1]
    with pytest.raises(LaunchError, match="local rank 2 has no device: found 2 .CUDA_VISIBLE_DEVICES is 0,2"):
        device.device(2)
    monkeypatch.setattr(CudaAccelerator, "device_count", lambda self: 1)
    assert device.device(5).index == 0  # each rank was shown its own
