"""Faults at a named point: the process dies, or an error is raised, at the n-th call of a function."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any


class Fault(Exception):
    """The error that `fails_at` raises: no code under test knows it."""


@contextlib.contextmanager
def kills_at(owner: Any, name: str, *, call: int = 1, after: bool = False) -> Iterator[None]:
    """This process is killed (SIGKILL) at the ``call``-th call of ``owner.name``, before it runs, or ``after`` it.

    For use in a rank or a child process: ``with kills_at(os, "replace"): engine.save_checkpoint(path)``.
    """
    with _at(owner, name, call, after, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        yield


@contextlib.contextmanager
def fails_at(
    owner: Any, name: str, *, call: int = 1, after: bool = False, error: BaseException | None = None
) -> Iterator[None]:
    """The ``call``-th call of ``owner.name`` raises ``error`` (if not given, a `Fault`) before it runs or ``after``."""

    def fail() -> None:
        raise error if error is not None else Fault(f"call {call} of {name}")

    with _at(owner, name, call, after, fail):
        yield


@contextlib.contextmanager
def _at(owner: Any, name: str, call: int, after: bool, strike: Any) -> Iterator[None]:
    whole = getattr(owner, name)
    own = vars(owner).get(name) if hasattr(owner, "__dict__") else None
    calls = 0

    def struck(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            strike()
        result = whole(*args, **kwargs)
        if calls == call and after:
            strike()
        return result

    setattr(owner, name, struck)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
