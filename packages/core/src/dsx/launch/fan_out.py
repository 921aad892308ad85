"""Several commands at once: when one fails the others are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

POLL = 0.1
PATIENCE = 5.0
"""Seconds between asking a command to end and killing it."""


def fan_out(commands: Sequence[Sequence[str]]) -> int:
    """Run all; 0 when all succeed, else the exit status of the first that fails. No process is left.

    Each command leads a process group of its own, so that its children are ended with it. A signal that would end this
    process (SIGINT, SIGTERM) ends them first.
    """
    running: list[subprocess.Popen[bytes]] = []
    with _signals_raise():
        try:
            for command in commands:
                running.append(subprocess.Popen(list(command), start_new_session=True))
            return _wait(running)
        except _Signalled as caught:
            return 128 + caught.number
        finally:
            _end(running)


class _Signalled(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise _Signalled(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        statuses = [process.poll() for process in running]
        failed = [status for status in statuses if status]
        if failed:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(POLL)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            if process.poll() is None or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and any(process.poll() is None for process in running):
            time.sleep(0.02)
