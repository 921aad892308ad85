"""Real gloo ranks for a test, from a fork server that has torch loaded: about a quarter of a second a test."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "dsx.api",
    "dsx.checkpoint.load",
    "dsx.checkpoint.save",
    "dsx.testing.rank_main",
)
"""Modules that the fork server imports once, for all ranks of all tests."""

GRACE = 1.0
"""Seconds that the other ranks are given to end by themselves once one has failed."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank failed."""

    rank: int
    reason: str
    """Its traceback, or how its process ended."""
    when: float
    """On the clock of ``time.monotonic``, so that failures can be put in order."""
    silent: bool = False
    """Its process died without a word: sooner a cause than a rank that complains of a lost peer."""


class RanksFailed(Exception):
    """Some ranks of a test failed; the first failure comes first."""

    def __init__(self, failures: list[RankFailure], *, world: int) -> None:
        self.failures = sorted(failures, key=lambda failure: (not failure.silent, failure.when))
        first, *others = self.failures
        text = f"rank {first.rank} of {world} failed first:\n{first.reason.rstrip()}"
        for other in others:
            text += f"\n\nrank {other.rank}, {max(other.when - first.when, 0):.1f} s later:\n{other.reason.rstrip()}"
        super().__init__(text)


def run_ranks(
    function: Callable[..., Any],
    *args: Any,
    world: int = 2,
    deadline: float = 60.0,
    env: Mapping[str, str] | None = None,
    init: bool = True,
) -> list[Any]:
    """Call ``function(*args)`` on each of ``world`` gloo ranks, and give their results by rank.

    The function is a module-level one; arguments and results are pickled. RANK, WORLD_SIZE, LOCAL_RANK and a
    rendezvous are set as torchrun sets them, and torch.distributed is initialised unless ``init`` is false.
    Raises RanksFailed with the first failing rank's traceback first; past ``deadline`` seconds with the stacks of the
    ranks that still run. No process is left.
    """
    reference = reference_to(function)
    with _rendezvous() as store, tempfile.TemporaryDirectory(prefix="dsx-ranks-") as scratch:
        crew = _Crew(world=world, stacks=Path(scratch))
        try:
            for rank in range(world):
                crew.start(rank, (reference, args, _environment(rank, world, store, env), init))
            return crew.results(until=monotonic() + deadline, deadline=deadline)
        finally:
            crew.end()


def reference_to(function: Callable[..., Any]) -> tuple[str, str, str]:
    """(module, qualified name, file): how a rank finds the function."""
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    if "<" in name or not module or not file:
        raise TypeError(f"found {function!r}; run_ranks wants a function defined at the top of a module file")
    return module, name, str(Path(file).resolve())


@contextlib.contextmanager
def _rendezvous() -> Iterator[int]:
    """The port of a store that this process keeps for its ranks, as torchrun's agent does."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def _environment(rank: int, world: int, port: int, env: Mapping[str, str] | None) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": "1",
        **(env or {}),
    }


@dataclass(slots=True)
class _Rank:
    process: ForkServerProcess
    connection: Connection
    answer: tuple[bool, Any, float] | None = None
    open: bool = True
    silent: bool = False


@dataclass(slots=True)
class _Crew:
    """The processes of one call."""

    world: int
    stacks: Path
    ranks: dict[int, _Rank] = field(default_factory=dict)

    def start(self, rank: int, work: tuple[Any, ...]) -> None:
        """Fork one rank off the server."""
        from dsx.testing.rank_main import rank_main

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOAD))
        ours, theirs = context.Pipe()
        payload = pickle.dumps(work)
        process = context.Process(target=rank_main, args=(theirs, payload, str(self.stacks / str(rank))))
        with _one_thread():
            process.start()
        theirs.close()
        self.ranks[rank] = _Rank(process, ours)

    def results(self, *, until: float, deadline: float) -> list[Any]:
        """Wait for all; the results by rank."""
        failed_at: float | None = None
        while running := [rank for rank in self.ranks.values() if rank.open]:
            limit = until if failed_at is None else min(until, failed_at + GRACE)
            if monotonic() >= limit:
                break
            for connection in wait([rank.connection for rank in running], timeout=max(limit - monotonic(), 0)):
                failed = self._receive(next(rank for rank in running if rank.connection is connection))
                failed_at = monotonic() if failed and failed_at is None else failed_at
        late = failed_at is None and any(rank.open for rank in self.ranks.values())
        failures = self._failures(deadline if late else None)
        if failures:
            raise RanksFailed(failures, world=self.world)
        return [self.ranks[rank].answer[1] for rank in range(self.world)]  # type: ignore[index]

    def _receive(self, rank: _Rank) -> bool:
        """Take a rank's answer; whether it is a failure."""
        rank.open = False
        try:
            good, data, when = pickle.loads(rank.connection.recv_bytes())
            rank.answer = (good, pickle.loads(data) if good else data, when)
        except (EOFError, OSError):
            rank.process.join(timeout=5)
            rank.silent = True
            rank.answer = (False, f"its process ended with {_ending(rank.process.exitcode)}", monotonic())
        return not rank.answer[0]

    def _failures(self, deadline: float | None) -> list[RankFailure]:
        failures = [
            RankFailure(number, str(rank.answer[1]), rank.answer[2], rank.silent)
            for number, rank in self.ranks.items()
            if rank.answer is not None and not rank.answer[0]
        ]
        if deadline is not None:
            now = monotonic()
            for number, rank in self.ranks.items():
                if rank.open:
                    stack = self._stack(number, rank)
                    failures.append(RankFailure(number, f"still running after {deadline:g} s, at\n{stack}", now))
        return failures

    def _stack(self, number: int, rank: _Rank) -> str:
        """Where a rank stands, written by its own fault handler."""
        file = self.stacks / str(number)
        if rank.process.pid is not None and file.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.process.pid, signal.SIGUSR1)
            until = monotonic() + 2
            while monotonic() < until and not file.stat().st_size:
                sleep(0.02)
            sleep(0.05)
            return file.read_text()
        return "a place before the test's function"

    def end(self) -> None:
        """Leave no process: a rank that has answered ends by itself, any other is killed; so are all their children."""
        for rank in self.ranks.values():
            if rank.answer is not None and rank.answer[0]:
                rank.process.join(timeout=5)
            if rank.process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.kill()
            rank.process.join()
            rank.process.close()
            rank.connection.close()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The fork server is started by the first rank and keeps this environment: one thread a rank."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
