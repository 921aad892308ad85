"""What a piece of code leaves behind: variables, threads, processes, groups, objects."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

PATIENCE = 1.0
"""Seconds that a thread or a process is given to end."""

_OTHERS = ("PYTEST_", "TORCHINDUCTOR_")
"""Variables that pytest sets for each test, and torch when its compiler is first imported."""


@dataclass(frozen=True, slots=True)
class Traces:
    """What exists in this process now, apart from objects."""

    environment: dict[str, str]
    threads: frozenset[int]
    children: frozenset[int]
    groups: int

    @classmethod
    def now(cls) -> Traces:
        """Look."""
        return cls(_environment(), frozenset(_threads()), frozenset(_children()), _groups())

    def left_behind(self) -> list[str]:
        """One line for each thing that exists now and did not exist then; threads are given a second to end."""
        until = monotonic() + PATIENCE
        while monotonic() < until and (_threads().keys() - self.threads or _children().keys() - self.children):
            sleep(0.01)
        left = [f"thread {name!r}" for ident, name in _threads().items() if ident not in self.threads]
        left += [f"process {name!r}" for pid, name in _children().items() if pid not in self.children]
        if _groups() > self.groups:
            left.append(f"{_groups() - self.groups} process groups of torch.distributed (close what made them)")
        now = _environment()
        for name in sorted(self.environment.keys() | now.keys()):
            if self.environment.get(name) != now.get(name):
                left.append(f"environment variable {name}={now.get(name)!r} (was {self.environment.get(name)!r})")
        return left


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}


def _threads() -> dict[int, str]:
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


def _children() -> dict[int, str]:
    return {child.pid: child.name for child in multiprocessing.active_children() if child.pid is not None}


def _groups() -> int:
    """Process groups of torch.distributed; none where nobody has imported it."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0
    return 1 + len([group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD])


@contextlib.contextmanager
def freed(*objects: Any) -> Iterator[None]:
    """After the block, each of ``objects`` must be gone: nothing but the caller's own names may have held it.

    The block deletes the caller's names::

        engine = make_engine()
        with freed(engine.module):
            engine.close()
            del engine
    """
    references = [weakref.ref(thing) for thing in objects]
    kinds = [type(thing).__name__ for thing in objects]
    del objects
    yield
    assert_freed(*references, names=kinds)


def assert_freed(*references: weakref.ref[Any], names: list[str] | None = None) -> None:
    """Raise AssertionError, naming who holds it, for each referent that is still alive after a collection."""
    gc.collect()
    alive = []
    for number, reference in enumerate(references):
        thing = reference()
        if thing is not None:
            holders = [type(holder).__name__ for holder in gc.get_referrers(thing) if holder is not sys._getframe()]
            name = names[number] if names is not None else type(thing).__name__
            alive.append(f"{name}, held by {', '.join(holders[:5])}")
        del thing
    if alive:
        raise AssertionError("still alive: " + "; ".join(alive))
