"""What the launcher says when ranks fail: the first failure first, with its traceback; the others in a line each."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 8
"""Later failures that are listed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank ended."""

    rank: int
    status: int
    """Exit status as the system gives it: negative is a signal."""
    message: str = ""
    trace: str = ""
    when: float = 0.0
    """Seconds since the epoch; 0 where the rank left no account."""

    @property
    def silent(self) -> bool:
        """Whether its process ended without an account of its own."""
        return not self.message

    def what(self) -> str:
        """The failure in a few words."""
        if self.message:
            return self.message.strip().splitlines()[0]
        if self.status < 0:
            name = signal.Signals(-self.status).name
            hint = " (often the system, out of memory)" if self.status == -signal.SIGKILL else ""
            return f"killed by {name}{hint}"
        return f"exit status {self.status}"


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The cause first. A process that died without a word comes before ranks that complain of a lost peer; a rank
    that was told to end (SIGTERM, by the launcher) comes last."""
    return sorted(failures, key=lambda f: (f.status == -signal.SIGTERM, not f.silent, f.when, f.rank))


def describe(failures: Iterable[Failure], *, world: int) -> str:
    """The message of the launcher."""
    first, *others = in_order(failures)
    lines = [f"rank {first.rank} of {world} failed first: {first.what()}"]
    if first.trace:
        lines += ["", first.trace.rstrip(), ""]
    others = [other for other in others if other.status != -signal.SIGTERM]
    for other in others[:SHOWN]:
        later = f" {other.when - first.when:.1f} s later" if other.when and first.when else ""
        lines.append(f"rank {other.rank} failed{later}: {other.what()}")
    if len(others) > SHOWN:
        lines.append(f"and {len(others) - SHOWN} more ranks")
    lines.append("the other ranks have been ended")
    return "\n".join(lines)


def exit_status(failures: Iterable[Failure]) -> int:
    """The status of the first failure, as a shell would give it."""
    status = in_order(failures)[0].status
    return 128 - status if status < 0 else status or 1
