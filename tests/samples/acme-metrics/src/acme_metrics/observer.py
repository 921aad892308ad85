"""Writes a line after every so many updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.engine.observers import Observer
from dsx.errors import ConfigError

if TYPE_CHECKING:
    from acme_metrics.config import MetricsConfig
    from dsx.engine.engine import Engine


class MetricsObserver(Observer):
    """Opens its file when the engine is built, and closes it with the engine."""

    def __init__(self, section: MetricsConfig) -> None:
        path = Path(section.path)
        if not path.parent.is_dir():
            raise ConfigError(
                f"acme_metrics.path: found {section.path!r}, wanted a file in a folder that exists\n"
                f"    what to do: make {path.parent}, or name another"
            )
        self._every = section.every
        self._file = path.open("a", encoding="utf-8")

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Write the update that has ended."""
        if engine.global_steps % self._every:
            return
        loss = engine.last_loss
        line = {
            "update": engine.global_steps,
            "loss": None if loss is None else float(loss),
            "norm": engine.get_global_grad_norm(),
            "applied": updated,
        }
        self._file.write(json.dumps(line) + "\n")

    def close(self, engine: Engine) -> None:
        """Close the file."""
        self._file.close()
