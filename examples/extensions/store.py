"""A store: where checkpoints are kept. This one keeps the last three.

Turned on by ``"checkpoint": {"store": "last_three"}``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from dsx.checkpoint.manifest import MANIFEST
from dsx.checkpoint.stores import PARTIAL, DirectoryStore
from dsx.plugin import STORE, Component, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-store", api=1, summary="keeps the last three checkpoints")


class LastThree(DirectoryStore):
    """A folder of checkpoints from which the oldest go once a new one is whole."""

    keep = 3

    def commit(self, tag: str, *, latest: bool) -> None:
        """Finish the checkpoint, then drop all but the newest. One that ``latest`` names stays in any case."""
        super().commit(tag, latest=latest)
        by_age = sorted(self.tags(), key=lambda known: (self.folder(known) / MANIFEST).stat().st_mtime_ns)
        for old in by_age[: -self.keep]:
            if old not in (tag, self.latest()):
                # Renamed first: a kill in between leaves no half of a checkpoint that looks whole.
                going = self.folder(old).rename(self.root / f"{old}{PARTIAL}")
                shutil.rmtree(going)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The store, under its name; an engine builds it with the root path of each save and load."""
    yield Component(STORE, "last_three", load=lambda: LastThree, summary="a folder with the last three checkpoints")
