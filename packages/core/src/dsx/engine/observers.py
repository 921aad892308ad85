"""Observers of an engine: bound once, called as plain methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsx.engine.engine import Engine
    from dsx.plugin.roles import Observer as AnyObserver


class Observer:
    """Does nothing at each step of the engine; override what you want to see."""

    def before_forward(self, engine: Engine) -> None:
        """Forward begins."""

    def after_forward(self, engine: Engine) -> None:
        """Forward has ended."""

    def before_backward(self, engine: Engine) -> None:
        """Backward begins."""

    def after_backward(self, engine: Engine) -> None:
        """Backward has ended; gradients may still be on their way."""

    def before_step(self, engine: Engine) -> None:
        """An update begins: gradients are complete, weights are the old ones."""

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """An update has ended, or was skipped."""

    def before_save(self, engine: Engine, path: Path) -> None:
        """A checkpoint will be written to this path."""

    def after_save(self, engine: Engine, path: Path) -> None:
        """A checkpoint was written."""

    def close(self, engine: Engine) -> None:
        """The engine closes."""


def close_observer(observer: AnyObserver, engine: Engine) -> None:
    """Tell an observer that the engine closes; what it raises names its plugin."""
    try:
        observer.close(engine)
    except Exception as error:
        engine.blame(observer, error)
        raise
