"""``enable_sanity_checks``: ranks that have parted are found at the update, not at the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsx.engine.observers import Observer

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


class SanityObserver(Observer):
    """After each update compares what all ranks of the data group have called; a CommError on each where it differs."""

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Compare."""
        engine.data_group.verify(site="sanity check")
