"""Saves that die: a child process is killed, or the disk fails, at each step in turn; then the store is looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dsx.errors import DsxError
from dsx.testing.rank_main import function_at
from dsx.testing.store_saves import read, write

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
"""Audit events of calls that change the file system; opening a file for writing is another."""

PREPARING = ("writer", "set_up_storage_writer", "prepare_local_plan", "describe")
"""Calls before which a crash is one before the next call."""


@dataclass(frozen=True, slots=True)
class Crashes:
    """Which store, as (module, qualified name, file), and where its roots may be."""

    store: tuple[str, str, str]
    folder: str


def crash(job: Crashes) -> str:
    """Every step of a save, killed and failed, under a tag that exists and under a new one; the first thing wrong.

    For a process of its own, whose file system calls it watches from then on.
    """
    make, steps = function_at(job.store), _Steps()
    # a process that dies loses nothing that the kernel has, so the disk need not be waited for
    os.fsync = lambda fd: steps.step("os.fsync")
    sys.addaudithook(steps.audit)
    for tag in ("first", "second"):
        root = Path(job.folder) / tag
        write(make(root), tag="first", value=1.0)
        with steps.armed(0, print):
            write(_Stepping(make(root), steps), tag=tag, value=2.0)
        moments = steps.moments()
        for fault in ("SIGKILL", "OSError"):
            newest = 1.0
            for moment in moments:
                attempt = _Attempt(make, steps, root.with_name(f"{tag}-{fault}-{moment}"), tag, fault, moment)
                newest, problem = attempt.run(newest)
                if problem:
                    return problem
    return ""


class _Steps:
    """Counts steps once armed, and strikes at one of them before it happens: a change to the file system, an fsync, or
    a call that is told of."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, bool]] = []
        self._moment = 0
        self._strike: Callable[[str], None] | None = None

    @contextlib.contextmanager
    def armed(self, moment: int, strike: Callable[[str], None]) -> Iterator[None]:
        """Within the block the ``moment``-th step is struck; none, if it is 0."""
        self._seen, self._moment, self._strike = [], moment, strike
        try:
            yield
        finally:
            self._strike = None

    def moments(self) -> list[int]:
        """The steps that were counted last, but calls that begin with a change: that change is the same moment."""
        calls = [is_call for _, is_call in self._seen]
        return [i + 1 for i, call in enumerate(calls) if not (call and i + 1 < len(calls) and not calls[i + 1])]

    def step(self, name: str, *, call: bool = False) -> None:
        """One step."""
        if self._strike is None:
            return
        self._seen.append((name, call))
        if len(self._seen) == self._moment:
            self._strike(name)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """What Python tells of calls into the system."""
        writes = os.O_WRONLY | os.O_RDWR
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & writes):
            self.step(event)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One save over an existing checkpoint that is struck at one moment."""

    make: Callable[[Path], Any]
    steps: _Steps
    root: Path
    tag: str
    fault: str
    moment: int

    def run(self, newest: float) -> tuple[float, str]:
        """(the newest value that was found, what was wrong). ``newest``: the one found before."""
        write(self.make(self.root), tag="first", value=1.0)
        where, failure = self._killed() if self.fault == "SIGKILL" else self._failed()
        if not where and failure:
            return newest, f"a save under {self.tag!r} failed that nothing struck: {failure}"
        how = f"after {self.fault} at step {self.moment} ({where or 'none'}) of a save under {self.tag!r}"
        if failure and not failure.startswith("DsxError"):
            return newest, f"{how}: save raised {failure}, wanted a DsxError"
        try:
            value = read(self.make(self.root))
        except Exception as error:  # noqa: BLE001  (a wrong store may raise anything)
            return newest, f"{how} the last good checkpoint does not load: {type(error).__name__}: {error}"
        done = not where or (self.fault == "OSError" and not failure)
        if value not in (1.0, 2.0) or (done and value != 2.0):
            return newest, f"{how} the store gives {value}" + (", though the save ended well" if done else "")
        if self.fault == "SIGKILL" and value < newest:
            return newest, f"{how} the store gives the earlier checkpoint, though a kill before left the new one"
        try:
            return value, self._go_on(how)
        except Exception as error:  # noqa: BLE001  (a wrong store may raise anything)
            return value, f"{how} the next save or load fails: {type(error).__name__}: {error}"

    def _go_on(self, how: str) -> str:
        """The next save works, whatever lies about."""
        if self.tag != "first" and read(self.make(self.root), tag="first") != 1.0:
            return f"{how} the checkpoint under another tag has changed"
        write(self.make(self.root), tag=self.tag, value=3.0)
        found, tags = read(self.make(self.root)), self.make(self.root).tags()
        if found != 3.0:
            return f"{how} the next save gives {found}, 3.0 was saved"
        if tags != sorted({"first", self.tag}):
            return f"{how} and the next save tags are {tags}"
        return ""

    def _killed(self) -> tuple[str, str]:
        """A save in a child that is killed: (the step that was struck, the error that it raised)."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            self._die(writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        kind, _, text = said.partition(":")
        return (text, "") if kind == "struck" else ("", text)

    def _die(self, pipe: int) -> NoReturn:
        def strike(name: str) -> None:
            os.write(pipe, f"struck:{name}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

        error = self._save(strike)
        os.write(pipe, f"ended:{error}".encode())
        os._exit(0)

    def _failed(self) -> tuple[str, str]:
        """A save in which one call fails: (the step that was struck, the error that the save raised)."""
        struck = []

        def strike(name: str) -> None:
            struck.append(name)
            raise OSError(28, f"No space left on device (a test, at {name})")

        error = self._save(strike)
        return "".join(struck), error

    def _save(self, strike: Callable[[str], None]) -> str:
        try:
            with self.steps.armed(self.moment, strike):
                write(_Stepping(self.make(self.root), self.steps), tag=self.tag, value=2.0)
        except DsxError as error:
            return f"DsxError {error}"
        except BaseException as error:  # noqa: BLE001  (told to whoever asked)
            return f"{type(error).__name__}: {error}"
        return ""


class _Stepping:
    """A store or writer whose calls are steps, but those that only prepare."""

    def __init__(self, inner: Any, steps: _Steps) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if name not in PREPARING:
                self._steps.step(f"{type(self._inner).__name__}.{name}", call=True)
            made = found(*args, **kwargs)
            return _Stepping(made, self._steps) if name == "writer" else made

        return call
