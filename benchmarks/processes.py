"""Runs a function on several ranks, each a fresh process, and gives what each returns."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class RankFailed(Exception):
    """A rank ended with an error; the text is what it wrote last."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_ranks(
    target: str,
    arguments: Mapping[str, Any],
    *,
    world: int,
    environment: Mapping[str, str] | None = None,
    timeout: float = 900.0,
) -> list[Any]:
    """Call ``module:function(**arguments)`` on ``world`` ranks, one thread each; give their results in rank order.

    Arguments and results are plain data: they travel as JSON. The function makes its own process group from the
    usual environment variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        shared = {
            **os.environ,
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        ranks = []
        for rank in range(world):
            command = [sys.executable, "-m", "benchmarks.processes", target, str(Path(folder, f"{rank}.json"))]
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "DSX_BENCHMARK": json.dumps(dict(arguments))}
            with Path(folder, f"{rank}.log").open("w") as log:
                ranks.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=log))
        culprit = first_unfinished(ranks, timeout=timeout)
        if culprit is not None:
            told = Path(folder, f"{culprit}.log").read_text()[-4000:]
            raise RankFailed(f"rank {culprit} of {target} {dict(arguments)}, ended or out of time:\n{told}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def first_unfinished(ranks: list[subprocess.Popen[bytes]], *, timeout: float) -> int | None:
    """Wait until all end well: ``None``. Else the first rank that failed, or that still ran when time was up."""
    deadline = time.monotonic() + timeout
    try:
        while True:
            states = [process.poll() for process in ranks]
            if all(state == 0 for state in states):
                return None
            failed = [rank for rank, state in enumerate(states) if state]
            if failed or time.monotonic() > deadline:
                return failed[0] if failed else states.index(None)
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def main() -> None:
    """What each rank's process runs."""
    module, _, function = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(os.environ["DSX_BENCHMARK"]))
    Path(sys.argv[2]).write_text(json.dumps(result))
    sys.stdout.flush()
    # The measurement is over. Some peers abort while Python tears their threads down, which is not what we measure.
    os._exit(0)


if __name__ == "__main__":
    main()
