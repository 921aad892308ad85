"""A monitor: where metrics are written. This one is a table in a SQLite file.

Turned on by ``"monitors": [{"type": "sqlite", "params": {"path": "runs/metrics.sqlite"}}]``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsx.plugin import MONITOR, Component, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-monitor", api=1, summary="metrics in SQLite")


class SqliteMonitor:
    """Rows (step, name, value) in the table ``metrics``. A monitor that fails is switched off; training goes on."""

    def __init__(self, *, path: str = "runs/metrics.sqlite") -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path)
        self._file.execute("CREATE TABLE IF NOT EXISTS metrics (step INTEGER, name TEXT, value REAL)")

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Add a row for each metric."""
        rows = [(step, name, float(value)) for name, value in values.items()]
        with self._file:
            self._file.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The monitor, under its name; only rank 0 makes one."""
    yield Component(MONITOR, "sqlite", load=lambda: SqliteMonitor, summary="a table in a SQLite file")
