"""The native library as a plugin: which kernels it offers, and how it fares on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dsx.errors import KernelError
from dsx.plugin import Kernel, PluginSpec, ReportRow, Score, hookimpl
from dsx_native import _core
from dsx_native.memory import FLOATS

SPEC = PluginSpec(name="native", api=1, summary="C++ kernels for the host processor")
SCORES = {"scalar": 10, "neon": 20, "avx2": 20, "avx512": 30}


@hookimpl
def dsx_plugin() -> PluginSpec:
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Kernel]:
    yield Kernel("adam_step", "native", load="dsx_native.kernels:adam_step", score=score, supports=supports)


@hookimpl
def dsx_report() -> Iterator[ReportRow]:
    isa, trouble = choice()
    runs_here = f"runs here: {', '.join(_core.available())}"
    yield ReportRow("native", "instruction set", isa, good=not trouble, note=trouble or runs_here)
    yield ReportRow("native", "built", ", ".join(_core.built()), note=f"by {_core.compiler}")


def choice() -> tuple[str, str]:
    """The instruction set that is used and, where DSX_NATIVE_ISA asks for one that is not to be had, what is wrong."""
    try:
        return _core.chosen(), ""
    except KernelError as error:
        return _core.available()[-1], str(error)


def score() -> Score:
    """How good the bodies are that this processor runs.

    A wish that cannot be met lowers nothing: falling back to torch would hide it, and the call itself refuses it.
    """
    isa, trouble = choice()
    return Score(SCORES[isa], trouble or f"{isa} bodies; this processor runs {', '.join(_core.available())}")


def supports(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one that the library's kernels take."""
    return tensor.device.type == "cpu" and tensor.dtype in FLOATS
