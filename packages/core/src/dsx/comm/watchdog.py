"""Deadlines of collectives, and one report of a hang on every rank that waits."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch.distributed as dist

from dsx.comm.journal import Record
from dsx.comm.report import Position, compose
from dsx.comm.transport import Pending
from dsx.errors import CommError

if TYPE_CHECKING:
    from dsx.comm.collectives import Collectives


log = logging.getLogger(__name__)

_LOST = ("gloo/transport", "Connection", "Application timeout", "NCCL")
"""What errors of lost peers say; others are mistakes in a call."""


class Store(Protocol):
    """What is needed of torch.distributed's stores."""

    def set(self, key: str, value: str) -> object: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


class Watch:
    """Keeps the deadlines of the groups of one mesh and makes their hang report.

    While all is well it costs one store request a rank every few seconds. A rank whose deadline has passed raises the
    alarm in the store; each rank answers with its position, from its own thread if it is not itself waiting; the first
    to raise the alarm composes the report; every rank raises it as a CommError, and the mesh is not usable any more.
    """

    def __init__(self, store: Store | None, *, rank: int, ranks: Sequence[int], deadline: float) -> None:
        self.report: str | None = None
        self.rank = rank
        self.ranks = tuple(ranks)
        self.interval = min(5.0, max(0.2, deadline / 8))
        """Seconds between two looks at the store; other ranks answer an alarm within one."""
        self._store = store
        self._groups: weakref.WeakSet[Collectives] = weakref.WeakSet()
        self._waiting: tuple[str, int] | None = None
        self._unfinished: deque[tuple[float, Collectives, Pending, Record]] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._stop.set)

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, *, deadline: float) -> Watch:
        """A watch for one process group alone, by the group's own store."""
        if group is None or group.size() == 1 or dist.get_backend(group) == "fake":
            return cls(None, rank=0, ranks=(0,), deadline=deadline)
        store = _own_store(group)
        ranks = dist.get_process_group_ranks(group)
        return cls(store, rank=ranks[group.rank()], ranks=ranks, deadline=deadline)

    def add(self, collectives: Collectives) -> None:
        """Watch one more group. It is forgotten when nobody else holds it."""
        self._groups.add(collectives)

    def check(self) -> None:
        """Raise the report again where a hang has been reported."""
        if self.report is not None:
            raise CommError(self.report)

    def start(self, collectives: Collectives, record: Record, start: Callable[[], Pending]) -> Pending:
        """Start a collective; raise the report where its connections have been closed already."""
        try:
            return start()
        except RuntimeError as error:
            self.check()
            if not any(word in str(error) for word in _LOST):
                raise
            self._waiting = (collectives.name, record.seq)
            self._raise_alarm(collectives, _cause(collectives, record, str(error)))

    def wait(self, collectives: Collectives, pending: Pending, record: Record) -> None:
        """Finish a collective, or raise the report."""
        if self._thread is None and self._store is not None:
            self._start()
        self._waiting = (collectives.name, record.seq)
        try:
            pending.finish(timeout=collectives.deadline)
        except RuntimeError as error:
            self.check()
            self._raise_alarm(collectives, _cause(collectives, record, str(error)))
        self._waiting = None
        if not pending.finished():
            self._unfinished.append((monotonic(), collectives, pending, record))

    def alarm(self, collectives: Collectives, cause: str) -> None:
        """Make and raise the report for this cause. Call it on every rank of the group."""
        self._raise_alarm(collectives, cause)

    def close(self) -> None:
        """End the thread; tell ranks that still wait that this one has left."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and self._store is not None:
            thread.join()
            if self.report is None:
                with contextlib.suppress(RuntimeError):
                    self._store.set(f"at/{self.rank}", json.dumps(self._position(left=True)))
        self._store = None
        self._unfinished.clear()

    def _start(self) -> None:
        arguments = (weakref.ref(self), self._stop, self.interval)
        self._thread = threading.Thread(target=_look_around, args=arguments, name="dsx-watch", daemon=True)
        self._thread.start()

    def _raise_alarm(self, collectives: Collectives, cause: str) -> NoReturn:
        self.report = self._agree(collectives.name, collectives.ranks, cause)
        raise CommError(self.report)

    def _agree(self, group: str, ranks: Sequence[int], cause: str) -> str:
        """The one report: made by the first rank that raised the alarm, read by the others."""
        store, own = self._store, self._position(left=False)
        if store is None:
            return compose({self.rank: own}, group=group, cause=cause)
        try:
            store.set(f"at/{self.rank}", json.dumps(own))
            if store.add("alarm", 1) == 1:
                report = compose(self._answers(store, ranks), group=group, cause=cause)
                store.set("report", report)
                return report
            return self._read_report(store)
        except RuntimeError as error:
            cause = f"{cause} (and the ranks' store is gone: {_first_line(str(error))})"
            return compose({self.rank: own}, group=group, cause=cause)

    def _answers(self, store: Store, ranks: Sequence[int]) -> dict[int, Position | None]:
        """The positions of all ranks that answer within two looks of their threads."""
        until = monotonic() + 2 * self.interval + 0.5
        missing = list(ranks)
        while missing and monotonic() < until:
            missing = [rank for rank in missing if not store.check([f"at/{rank}"])]
            sleep(0.02)
        return {rank: None if rank in missing else json.loads(store.get(f"at/{rank}")) for rank in ranks}

    def _read_report(self, store: Store) -> str:
        until = monotonic() + 4 * self.interval + 2.0
        while not store.check(["report"]):
            if monotonic() > until:
                raise RuntimeError("the rank that raised the alarm gave no report")
            sleep(0.02)
        return store.get("report").decode()

    def _look(self) -> None:
        """Answer an alarm of another rank; raise one for a device collective that is overdue."""
        store = self._store
        if store is None or self.report is not None:
            return
        while self._unfinished and self._unfinished[0][2].finished():
            self._unfinished.popleft()
        if self._unfinished and monotonic() - self._unfinished[0][0] > self._unfinished[0][1].deadline:
            _, collectives, _, record = self._unfinished[0]
            self.report = self._agree(collectives.name, collectives.ranks, _cause(collectives, record, "Timed out"))
            log.error("rank %d: %s", self.rank, self.report)
            self._sever()
            return
        try:
            if store.check(["alarm"]):
                store.set(f"at/{self.rank}", json.dumps(self._position(left=False)))
                self.report = self._read_report(store)
                self._sever()
        except RuntimeError:
            return  # the store's rank has gone; who waits is told by the lost connection

    def _sever(self) -> None:
        """Wake whoever waits on this rank and its peers."""
        for collectives in list(self._groups):
            collectives.transport.sever()

    def _position(self, *, left: bool) -> dict[str, Any]:
        groups = {collectives.name: collectives.journal.as_plain() for collectives in list(self._groups)}
        where = "" if left else _place_in_user_code()
        return {"groups": groups, "waiting": self._waiting, "where": where, "left": left}


def _look_around(reference: weakref.ref[Watch], stop: threading.Event, interval: float) -> None:
    """The thread. It does not keep the watch alive."""
    while not stop.wait(interval):
        watch = reference()
        if watch is None:
            return
        watch._look()  # the thread belongs to the class
        del watch


def _own_store(group: dist.ProcessGroup) -> Store:
    """The group's store under a prefix, over a connection that no other thread uses."""
    shared: Any = group.get_group_store()
    store: Store = dist.PrefixStore(f"dsx-watch/{group.group_name}", shared.clone())  # type: ignore[attr-defined]
    return store


def _cause(collectives: Collectives, record: Record, error: str) -> str:
    what = f"{record.op} '{record.site}' of group '{collectives.name}'"
    if "Timed out" in error or "timeout" in error:
        return f"{what} did not complete within {collectives.deadline:g} s"
    return f"{what} lost a rank ({_first_line(error)})"


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return line.partition("] ")[2] if line.startswith("[/") and "] " in line else line


def _place_in_user_code() -> str:
    """The main thread's innermost line outside dsx and torch, as ``file:line in function``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return ""
    ours = (str(Path(__file__).parents[1]), str(Path(dist.__file__).parents[1]), "<frozen")
    for entry in reversed(traceback.extract_stack(frame)):
        if not entry.filename.startswith(ours):
            return f"{Path(entry.filename).name}:{entry.lineno} in {entry.name}"
    return ""
