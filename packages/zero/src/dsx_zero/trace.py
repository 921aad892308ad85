"""The order in which buckets are used, recorded once and relied on while it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Trace:
    """Uses of one forward and backward, by bucket index; the last complete one foretells the next.

    Pure bookkeeping: every rank that runs the same model records the same.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.known: tuple[int, ...] = ()
        """The last complete order."""
        self.position = 0
        """How far the present pass has followed it."""
        self.current: list[int] = []
        self.astray = False
        """Whether the present pass has left the known order."""
        self.open: int | None = None
        """The bucket in use: modules that share it use it once."""

    def restart(self) -> None:
        """A new pass begins; what was recorded becomes what is known."""
        if self.current:
            self.known = tuple(self.current)
        self.current = []
        self.position = 0
        self.astray = False
        self.open = None

    def note(self, index: int) -> None:
        """A bucket is used."""
        if self.open == index:
            return
        self.open = index
        self.current.append(index)
        if self.astray or not self.known:
            return
        if self.position < len(self.known) and self.known[self.position] == index:
            self.position += 1
        else:
            self.astray = True

    def leave(self) -> None:
        """The modules that share the bucket are done: what comes next is another use, even of the same."""
        self.open = None

    def upcoming(self) -> Iterator[int]:
        """The buckets that will be used next, as far as is known."""
        if not self.astray:
            yield from self.known[self.position :]

    def distance(self, index: int) -> int | None:
        """Elements of other buckets used before this one is used again; ``None``: not again, or not known."""
        total = 0
        for other in self.upcoming():
            if other == index:
                return total
            total += self.sizes[other]
        return None
