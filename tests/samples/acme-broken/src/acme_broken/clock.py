"""An observer with a clock of its own."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from dsx.engine.observers import Observer

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


class Clock(Observer):
    """Starts a thread that nothing ends, and sets a variable that nothing removes."""

    def __init__(self) -> None:
        threading.Thread(target=threading.Event().wait, name="acme-clock", daemon=True).start()

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Tell the whole program."""
        os.environ["ACME_CLOCK"] = str(engine.global_steps)
