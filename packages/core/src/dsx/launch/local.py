"""The ranks of this machine, under torchrun's agent."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsx.errors import LaunchError
from dsx.launch.failures import Failure, describe, exit_status

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

SHUTDOWN = 5
"""Seconds between asking the other ranks to end and killing them."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start here."""

    program: tuple[str, ...]
    """Script and its arguments, or a module and its arguments."""
    nproc: int
    as_module: bool = False
    nodes: int = 1
    node_rank: int = 0
    master_addr: str = "localhost"
    master_port: int | None = None
    """``None``: a free port. Several machines need one that all know."""


def run_local(launch: Launch, *, say: Callable[[str], None]) -> int:
    """Start the ranks, wait for them, and give the exit status: 0, or that of the first failure.

    Raises LaunchError before anything is started where the program or the port cannot serve.
    """
    _check(launch)
    _set_threads(launch.nproc, say)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failures are told below, once
    with tempfile.TemporaryDirectory(prefix="dsx-run-") as logs:
        command = ["-m", "dsx.launch.rank_script", *(["-m"] if launch.as_module else []), *launch.program]
        try:
            elastic_launch(_elastic_config(launch, logs), sys.executable)(*command)
        except ChildFailedError as error:
            failures = _failures(error)
            say(describe(failures, world=launch.nproc * launch.nodes))
            return exit_status(failures)
        except SignalException as error:
            say(f"ended by {error.sigval.name}; so are all ranks")
            return 128 + error.sigval
    return 0


def _elastic_config(launch: Launch, logs: str) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    alone = launch.nodes == 1
    port = launch.master_port or 0
    return LaunchConfig(
        min_nodes=launch.nodes,
        max_nodes=launch.nodes,
        nproc_per_node=launch.nproc,
        run_id=f"dsx-{launch.master_addr}-{port}" if not alone else f"dsx-{os.getpid()}",
        rdzv_backend="static" if not alone else "c10d",
        rdzv_endpoint=f"{launch.master_addr}:{port}",
        rdzv_configs={"rank": launch.node_rank, "timeout": 900} if not alone else {},
        max_restarts=0,
        local_addr="localhost" if alone else None,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
        shutdown_timeout=SHUTDOWN,
    )


def _check(launch: Launch) -> None:
    if launch.nproc < 1:
        raise LaunchError(f"found --nproc {launch.nproc}; wanted at least 1")
    if not launch.as_module and not os.path.isfile(launch.program[0]):
        raise LaunchError(f"found no script {launch.program[0]!r}; give a file, or a module after -m")
    if launch.nodes > 1 and launch.master_port is None:
        raise LaunchError(f"a run on {launch.nodes} machines needs a port that all of them know: give --master-port")
    if not 0 <= launch.node_rank < launch.nodes:
        raise LaunchError(f"found --node-rank {launch.node_rank} of {launch.nodes} machines; ranks count from 0")
    if launch.master_port is not None and launch.node_rank == 0:
        _check_port(launch.master_port)


def _check_port(port: int) -> None:
    """A taken port would only show after minutes, as ranks that do not meet."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            raise LaunchError(
                f"port {port} cannot be used: {error}; choose another with --master-port, or leave it out for a "
                "free one"
            ) from error


def _set_threads(nproc: int, say: Callable[[str], None]) -> None:
    """Each rank gets its share of the processors: with more threads than processors, ranks spin against each other."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // nproc)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    say(f"OMP_NUM_THREADS={threads}: {cores} processors for {nproc} ranks; set it yourself to choose otherwise")


def _failures(error: ChildFailedError) -> list[Failure]:
    found = []
    for rank, failure in error.failures.items():
        data = failure.error_file_data.get("message", "") if failure.error_file_data else ""
        account = data if isinstance(data, dict) else {}
        extra = account.get("extraInfo", {})
        found.append(
            Failure(
                rank=rank,
                status=failure.exitcode,
                message=account.get("message", ""),
                trace=extra.get("py_callstack", ""),
                when=float(extra.get("time", 0.0)),
            )
        )
    return found
