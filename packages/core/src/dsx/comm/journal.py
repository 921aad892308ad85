"""What one rank did in one group: the last calls, how often each site called, and what it cost."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

KEPT = 64
"""Calls that a journal remembers: enough to find where two ranks parted."""


@dataclass(slots=True)
class Record:
    """One collective call. Ranks of a group agree in all fields but the last, or they have parted."""

    seq: int
    op: str
    dtype: str
    numel: int
    site: str
    """Module path and phase, such as ``blocks.3 gather``."""
    state: str = "running"
    """``running``, ``waited`` (somebody waits for it now) or ``done``."""

    def line(self) -> str:
        """The call as a report shows it."""
        return f"'{self.site}' (call {self.seq}: {self.op}, {self.numel} x {self.dtype})"

    def key(self) -> tuple[int, str, str, int, str]:
        """What must be equal on all ranks of the group."""
        return (self.seq, self.op, self.dtype, self.numel, self.site)

    def as_plain(self) -> list[Any]:
        """The record as JSON carries it."""
        return [self.seq, self.op, self.dtype, self.numel, self.site, self.state]


class Journal:
    """A ring of the last calls of one group on this rank, with calls by site since the last mark."""

    def __init__(self) -> None:
        self.seq = 0
        self.counts: Counter[str] = Counter()
        self.fingerprint = 0
        """Checksum of all calls so far: equal on ranks that did the same."""
        self._ring: list[Record] = []

    def add(self, op: str, dtype: str, numel: int, site: str) -> Record:
        """Note a call and number it."""
        record = Record(self.seq, op, dtype, numel, site)
        self.seq += 1
        self.counts[site] += 1
        self.fingerprint = zlib.crc32(repr(record.key()).encode(), self.fingerprint)
        if len(self._ring) < KEPT:
            self._ring.append(record)
        else:
            self._ring[record.seq % KEPT] = record
        return record

    def mark(self) -> None:
        """A new update begins: calls by site are counted anew, so that a report speaks of this update."""
        self.counts = Counter()

    def records(self) -> list[Record]:
        """The remembered calls, oldest first. Safe from another thread."""
        return sorted(self._ring, key=lambda record: record.seq)

    def as_plain(self) -> dict[str, Any]:
        """The journal as JSON carries it to the other ranks."""
        return {"seq": self.seq, "counts": dict(self.counts), "calls": [r.as_plain() for r in self.records()]}


@dataclass(slots=True)
class Cost:
    """What the calls of one kind cost this rank."""

    calls: int = 0
    bytes: int = 0
    """Bytes that this rank sent on the wire."""
    seconds: float = 0.0
    """Seconds that this rank spent waiting for them."""


@dataclass(slots=True)
class Account:
    """Calls, bytes sent and seconds waited, by operation. Always on: its cost is an addition."""

    by_op: dict[str, Cost] = field(default_factory=dict)

    def add(self, op: str, *, calls: int = 0, sent: int = 0, seconds: float = 0.0) -> None:
        """Add to one operation's cost."""
        cost = self.by_op.get(op)
        if cost is None:
            cost = self.by_op[op] = Cost()
        cost.calls += calls
        cost.bytes += sent
        cost.seconds += seconds

    @property
    def total(self) -> Cost:
        """The sum over all operations."""
        costs = list(self.by_op.values())
        return Cost(sum(c.calls for c in costs), sum(c.bytes for c in costs), sum(c.seconds for c in costs))

    def reset(self) -> None:
        """Forget what was counted."""
        self.by_op.clear()
