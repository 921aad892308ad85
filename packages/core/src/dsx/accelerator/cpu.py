"""The processor as a device."""

from __future__ import annotations

import os
import platform
import resource
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dsx.plugin.types import Score

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Instructions that multiply bf16 directly: Intel and AMD, Intel tiles, Arm."""

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class CpuAccelerator:
    """The host. One device, whatever the number of ranks."""

    name = "cpu"
    device_type = "cpu"
    backend = "gloo"

    @staticmethod
    def score() -> Score:
        """Always there."""
        return Score(1, "every machine has a processor")

    def device(self, local_rank: int) -> torch.device:
        """The host."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, local_rank: int) -> None:
        """Nothing to choose."""

    def synchronize(self) -> None:
        """The host is never behind itself."""

    def native_bf16(self) -> bool:
        """Whether this processor multiplies bf16 without converting to fp32."""
        return bool(BF16_FLAGS & self._flags)

    def memory_allocated(self) -> int:
        """Bytes of this process that are resident now (at their peak, where the system tells only that)."""
        statm = Path("/proc/self/statm")
        if statm.exists():
            return int(statm.read_text().split()[1]) * resource.getpagesize()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def memory_total(self) -> int:
        """Bytes that this machine, or the container around this process, has."""
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limits = [Path(name).read_text().strip() for name in _CGROUP_LIMITS if Path(name).exists()]
        return min([machine, *(int(limit) for limit in limits if limit.isdigit())])

    def describe(self) -> str:
        """Model, cores and instructions in one line."""
        bf16 = "native bf16" if self.native_bf16() else "bf16 by conversion"
        return f"{self._model}, {cores()} cores, {torch.backends.cpu.get_cpu_capability()}, {bf16}"

    @cached_property
    def _flags(self) -> frozenset[str]:
        for line in _cpuinfo():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return frozenset(value.split())
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return frozenset(name for name, there in capabilities.items() if there is True)

    @cached_property
    def _model(self) -> str:
        for line in _cpuinfo():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
        return platform.processor() or platform.machine()


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []
