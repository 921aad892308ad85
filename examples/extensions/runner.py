"""A runner: the commands that start ranks on several machines. This one uses pdsh.

Turned on by ``dsx run --runner pdsh --hostfile machines train.py``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsx.errors import LaunchError
from dsx.launch.runners import exported
from dsx.plugin import RUNNER, Component, PluginSpec, Score, hookimpl

SPEC = PluginSpec(name="example-runner", api=1, summary="starts ranks over pdsh")


class PdshRunner:
    """One pdsh over all machines, and an agent on each. pdsh itself says which of them one is: ``%n``."""

    def available(self) -> Score:
        """Where there is a pdsh."""
        path = shutil.which("pdsh")
        return Score(1, path) if path is not None else Score(0, "there is no program 'pdsh' on PATH")

    def commands(
        self, *, nodes: Mapping[str, tuple[int, ...]], program: Sequence[str], environment: Mapping[str, str]
    ) -> list[list[str]]:
        """One command. ``%`` means something to pdsh, so those of the program are doubled."""
        counts = {len(slots) for slots in nodes.values()}
        if len(counts) > 1:
            raise LaunchError("pdsh gives every machine the same command: make their slots equal with --include")
        settings = [f"{name}={value}" for name, value in exported(environment).items()]
        agent = [sys.executable, "-m", "dsx.launch.agent", "--nodes", str(len(nodes)), "--nproc", str(counts.pop())]
        agent += ["--master-addr", environment["MASTER_ADDR"], "--master-port", environment["MASTER_PORT"]]
        line = shlex.join(["env", *settings, *agent, "--node-rank", "NODE_RANK", *program]).replace("%", "%%")
        there = f"cd {shlex.quote(os.getcwd())} && exec {line.replace('NODE_RANK', '%n', 1)}"
        return [["pdsh", "-S", "-w", ",".join(nodes), there]]


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The runner, under its name."""
    yield Component(RUNNER, "pdsh", load=lambda: PdshRunner, summary="an agent a machine, over pdsh")
