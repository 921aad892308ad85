"""``comms_logger``: what collectives moved, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dsx.comm.journal import Account, Record
from dsx.engine.observers import Observer
from dsx.observe.tell import is_due, tell

if TYPE_CHECKING:
    from dsx.comm.collectives import Collectives
    from dsx.config.watching import CommsLoggerSection
    from dsx.engine.engine import Engine

MIB = 2**20
HEAD = ("operation", "calls", "MiB sent", "s waited", "MiB a call")


class CommunicationObserver(Observer):
    """Prints this rank's calls, bytes and waits since the engine was built, by operation; with ``debug`` by site."""

    def __init__(self, section: CommsLoggerSection, every: int | None) -> None:
        self.section = section
        self.every = every
        self._by_site: dict[str, Account] = {}
        self._printed = -1
        self._listening = False

    def before_forward(self, engine: Engine) -> None:
        """From the first forward on, hear of each collective where single ones are asked for."""
        if not self._listening and (self.section.verbose or self.section.debug):
            engine.mesh.listen(self.heard)
            self._listening = True

    def heard(self, group: Collectives, record: Record, sent: int, seconds: float) -> None:
        """One collective has ended."""
        op = record.op.partition(" ")[0]
        if not self.shows(op):
            return
        if self.section.debug:
            self._by_site.setdefault(record.site, Account()).add(op, calls=1, sent=sent, seconds=seconds)
        if self.section.verbose:
            tell(
                f"comm | {group.name} | {record.op} | {record.numel} x {record.dtype} | {sent / MIB:.3f} MiB sent | "
                f"{seconds * 1000:.2f} ms waited | {record.site}"
            )

    def shows(self, op: str) -> bool:
        """Whether an operation is asked for: ``all_gather`` also as ``all_gather_into_tensor`` or ``allgather``."""
        if self.section.prof_all:
            return True
        return any(_plain(asked).startswith(_plain(op)) for asked in self.section.prof_ops)

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Print, where it is time."""
        if is_due(engine.global_steps, self.every):
            self._print(engine)

    def close(self, engine: Engine) -> None:
        """Print what has come since the last table."""
        if self._printed != engine.comm_account().total.calls:
            self._print(engine)
        if self._listening:
            engine.mesh.listen(None)

    def _print(self, engine: Engine) -> None:
        account = engine.comm_account()
        self._printed = account.total.calls
        rows = list(_rows("", account, self.shows))
        for site, each in sorted(self._by_site.items()):
            rows += _rows(f" at {site}", each, self.shows)
        title = f"step {engine.global_steps} | communication of rank {engine.plan.world.rank}"
        tell("\n".join((title, *table(HEAD, rows))) if rows else f"{title}: none")


def _rows(where: str, account: Account, shows: Callable[[str], bool]) -> Iterator[tuple[str, ...]]:
    for op, cost in sorted(account.by_op.items()):
        if shows(op):
            sent = cost.bytes / MIB
            yield op + where, str(cost.calls), f"{sent:.3f}", f"{cost.seconds:.3f}", f"{sent / max(cost.calls, 1):.4f}"


def _plain(op: str) -> str:
    return op.replace("_", "").lower()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines in columns: the first to the left, numbers to the right."""
    every = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(head))]
    return [
        "  ".join(
            text.ljust(width) if not column else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in every
    ]
