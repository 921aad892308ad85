"""The native library as a plugin: which kernels it offers, and how it fares on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from dsx.plugin import Kernel, PluginSpec, ReportRow, hookimpl
from dsx_native import _core
from dsx_native.choice import choice, score, supports

SPEC = PluginSpec(name="native", api=1, summary="C++ kernels for the host processor")


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
