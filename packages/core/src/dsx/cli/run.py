"""``dsx run``: starts a training script on several ranks."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from dsx.cli.choice_of_plugins import Plugins
from dsx.errors import LaunchError
from dsx.launch.choice import choose_runner, default_nproc
from dsx.launch.fan_out import fan_out
from dsx.launch.hostfile import Hosts, choose_slots, read_hostfile, visible_devices
from dsx.launch.local import Launch, run_local


def run(
    program: Annotated[list[str], typer.Argument(help="The script (or, after -m, the module) and its arguments.")],
    module: Annotated[
        bool, typer.Option("-m", "--module", help="The program is a module, as after python -m.")
    ] = False,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", help="Ranks on this machine [default: its devices, or 1 on CPU].")
    ] = None,
    nnodes: Annotated[int, typer.Option(help="Machines, when dsx run is called on each of them.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="Which of the machines this is [default: as SLURM or MPI says].")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(help="The machine where ranks meet [default: this, or the hostfile's first].")
    ] = None,
    master_port: Annotated[int | None, typer.Option(help="The port where ranks meet [default: a free one].")] = None,
    hostfile: Annotated[
        Path | None, typer.Option(help="Machines, 'host slots=N' a line: start on all of them.")
    ] = None,
    include: Annotated[str, typer.Option(help="Machines and slots to use: host[:slot,slot]@host...")] = "",
    exclude: Annotated[str, typer.Option(help="Machines and slots to leave out.")] = "",
    runner: Annotated[
        str | None, typer.Option(help="How to reach machines: ssh, slurm, mpi [default: the best].")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands for other machines, and end.")] = False,
    plugin: Plugins = None,
) -> None:
    """Start PROGRAM on several ranks; when one fails all are ended, and the first failure is shown."""
    if hostfile is not None:
        hosts = choose_slots(read_hostfile(hostfile), include=include, exclude=exclude)
        slots = _slots_here(hosts) if runner is None and not dry_run else None
        if slots is None:
            program = ["-m", *program] if module else program
            raise typer.Exit(_run_on(hosts, program, runner, master_addr, master_port, dry_run=dry_run))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(slots, given=os.environ.get("CUDA_VISIBLE_DEVICES"))
        launch = Launch(tuple(program), nproc=len(slots), as_module=module, master_port=master_port)
    elif include or exclude or runner or dry_run:
        raise LaunchError("--include, --exclude, --runner and --dry-run speak of several machines: give --hostfile too")
    else:
        launch = Launch(
            program=tuple(program),
            nproc=nproc if nproc is not None else default_nproc(),
            as_module=module,
            nodes=nnodes,
            node_rank=node_rank if node_rank is not None else _node_rank(nnodes, os.environ),
            master_addr=master_addr or _master(nnodes),
            master_port=master_port,
        )
    raise typer.Exit(run_local(launch, say=_say))


def _slots_here(hosts: Hosts) -> tuple[int, ...] | None:
    """The slots, where this machine is the only one."""
    (host, slots), *others = hosts.items()
    return slots if not others and host in ("localhost", "127.0.0.1", socket.gethostname()) else None


def _run_on(
    hosts: Hosts, program: list[str], runner: str | None, address: str | None, port: int | None, *, dry_run: bool
) -> int:
    environment = {
        **os.environ,
        "MASTER_ADDR": address or next(iter(hosts)),
        "MASTER_PORT": str(port if port is not None else _free_port()),
    }
    commands = choose_runner(runner).commands(nodes=hosts, program=program, environment=environment)
    if dry_run:
        for command in commands:
            typer.echo(shlex.join(command))
        return 0
    return fan_out(commands)


def _node_rank(nodes: int, environment: Mapping[str, str]) -> int:
    for name in ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if environment.get(name, "").isdigit():
            return int(environment[name]) if nodes > 1 else 0
    if nodes > 1:
        raise LaunchError(f"which of the {nodes} machines is this? give --node-rank 0 to {nodes - 1}")
    return 0


def _master(nodes: int) -> str:
    if nodes > 1:
        raise LaunchError(f"a run on {nodes} machines needs the name of the first one: give --master-addr")
    return "localhost"


def _free_port() -> int:
    """A port that is free here; most likely it is free on the first machine too."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _say(text: str) -> None:
    typer.echo(f"dsx run: {text}", err=True)
