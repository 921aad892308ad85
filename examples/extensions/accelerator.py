"""An accelerator: a kind of device. This one takes each NUMA node of the host for a device, one rank on each.

Turned on by being there, on a host without a better device, or by ``DSX_ACCELERATOR=numa``; ``dsx run`` then starts a
rank for each node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsx.accelerator.cpu import CpuAccelerator
from dsx.plugin import ACCELERATOR, Component, PluginSpec, ReportRow, Score, hookimpl

SPEC = PluginSpec(name="example-accelerator", api=1, summary="a rank for each NUMA node")
NODES = Path("/sys/devices/system/node")


def nodes() -> list[frozenset[int]]:
    """The cores of each node that has some, by number; nothing where the system does not tell."""
    files = sorted(NODES.glob("node[0-9]*/cpulist"), key=lambda file: int(file.parent.name.removeprefix("node")))
    return [found for file in files if (found := cores(file.read_text().strip()))]


def cores(text: str) -> frozenset[int]:
    """``0-3,8`` as numbers."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return frozenset(core for first, _, last in ranges for core in range(int(first), int(last or first) + 1))


class NumaAccelerator(CpuAccelerator):
    """The host, whose nodes are its devices."""

    name = "numa"

    @staticmethod
    def score() -> Score:
        """Better than the plain host, where nodes can be told apart."""
        count = len(nodes()) if hasattr(os, "sched_setaffinity") else 0
        return Score(2, f"{count} nodes") if count else Score(0, f"no node is listed in {NODES}")

    def device_count(self) -> int:
        """A device for each node."""
        return len(nodes())

    def set_device(self, local_rank: int) -> None:
        """Stay on the cores of this rank's node, as far as this process may use them."""
        known = nodes()
        allowed = known[local_rank % len(known)] & os.sched_getaffinity(0)
        if allowed:
            os.sched_setaffinity(0, allowed)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The accelerator, under its name."""
    yield Component(ACCELERATOR, "numa", load=lambda: NumaAccelerator, summary="each NUMA node of the host")


@hookimpl
def dsx_report() -> Iterator[ReportRow]:
    """A line of ``dsx report``."""
    yield ReportRow("numa", "nodes", ", ".join(f"{len(found)} cores" for found in nodes()) or "none listed")
