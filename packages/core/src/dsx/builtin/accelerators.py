"""The devices that the core knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import ACCELERATOR
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Named as in ``DSX_ACCELERATOR``."""
    yield Component(ACCELERATOR, "cpu", load="dsx.accelerator.cpu:CpuAccelerator", summary="the host, over gloo")
    yield Component(ACCELERATOR, "cuda", load="dsx.accelerator.cuda:CudaAccelerator", summary="CUDA devices, over NCCL")
