"""Commands that start ranks on several machines. Pure functions of machines, program and environment."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from dsx.errors import LaunchError
from dsx.launch.hostfile import Hosts, visible_devices
from dsx.plugin.types import Score

EXPORTED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Variables of this shell that a rank on another machine needs; those of the prefixes below go with them."""

PREFIXES = ("DSX_", "NCCL_", "GLOO_", "OMP_", "TORCH_", "CUDA_", "HF_", "MASTER_")

_RANK = ("-m", "dsx.launch.rank_script")
_AGENT = ("-m", "dsx.launch.agent")


def exported(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that go to other machines, by name."""
    return {
        name: environment[name]
        for name in sorted(environment)
        if name in EXPORTED or (name.startswith(PREFIXES) and name != "CUDA_VISIBLE_DEVICES")
    }


class SshRunner:
    """One agent a machine, over ssh, each in the directory of this process. Needs keys that ask for no password."""

    program = "ssh"

    def available(self) -> Score:
        """Where there is an ssh."""
        return _found(self.program, 2)

    def commands(self, *, nodes: Hosts, program: Sequence[str], environment: Mapping[str, str]) -> list[list[str]]:
        """One command a machine. The agent there starts a rank for each slot."""
        master, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
        commands = []
        for number, (host, slots) in enumerate(nodes.items()):
            variables = {**exported(environment), **_devices(slots)}
            there = [sys.executable, *_AGENT, "--nodes", str(len(nodes)), "--node-rank", str(number)]
            there += ["--nproc", str(len(slots)), "--master-addr", master, "--master-port", port, *program]
            settings = [f"{name}={value}" for name, value in variables.items()]
            line = f"cd {shlex.quote(os.getcwd())} && exec env {shlex.join([*settings, *there])}"
            commands.append([self.program, "-tt", "-o", "BatchMode=yes", host, line])
        return commands


class SlurmRunner:
    """One task a rank, by srun within an allocation."""

    program = "srun"

    def available(self) -> Score:
        """Best within an allocation."""
        return _found(self.program, 4 if "SLURM_JOB_ID" in os.environ else 1)

    def commands(self, *, nodes: Hosts, program: Sequence[str], environment: Mapping[str, str]) -> list[list[str]]:
        """One srun over the machines; it ends all tasks when one fails."""
        slots = _equal_slots(nodes, self.program)
        variables = {**exported(environment), **_devices(slots)}
        command = [self.program, "--nodes", str(len(nodes)), "--ntasks", str(len(nodes) * len(slots))]
        command += ["--ntasks-per-node", str(len(slots)), "--nodelist", ",".join(nodes), "--kill-on-bad-exit=1"]
        command += ["--export", ",".join(["ALL", *variables])]
        settings = [f"{name}={value}" for name, value in variables.items()]
        return [["env", *settings, *command, sys.executable, *_RANK, *program]]


class MpiRunner:
    """One MPI process a rank, by Open MPI's mpirun. MPI only starts the ranks; they do not speak it."""

    program = "mpirun"

    def available(self) -> Score:
        """Where there is an mpirun."""
        return _found(self.program, 3 if "OMPI_COMM_WORLD_SIZE" in os.environ else 1)

    def commands(self, *, nodes: Hosts, program: Sequence[str], environment: Mapping[str, str]) -> list[list[str]]:
        """One mpirun over the machines; it ends all processes when one fails."""
        variables = {**exported(environment), **_devices(_equal_slots(nodes, self.program))}
        total = sum(len(slots) for slots in nodes.values())
        listed = ",".join(f"{host}:{len(slots)}" for host, slots in nodes.items())
        command = [self.program, "-n", str(total), "--host", listed]
        for name, value in variables.items():
            command += ["-x", f"{name}={value}"]
        return [[*command, sys.executable, *_RANK, *program]]


def _found(program: str, value: int) -> Score:
    path = shutil.which(program)
    return Score(value, path) if path is not None else Score(0, f"there is no program '{program}' on PATH")


def _devices(slots: tuple[int, ...]) -> dict[str, str]:
    """The list of visible devices, where the slots are not simply the first ones. The list here says nothing there."""
    if slots == tuple(range(len(slots))):
        return {}
    return {"CUDA_VISIBLE_DEVICES": visible_devices(slots, given=None)}


def _equal_slots(nodes: Hosts, program: str) -> tuple[int, ...]:
    """The slots of each machine, where one command serves all."""
    kinds = set(nodes.values())
    if len(kinds) > 1:
        found = ", ".join(f"{host} {len(slots)}" for host, slots in nodes.items())
        raise LaunchError(
            f"{program} starts the same ranks on each machine; found slots {found}: make them equal with a filter, or "
            "use --runner ssh"
        )
    return kinds.pop()
