"""``wall_clock_breakdown``: how long forward, backward and step take."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch

from dsx.engine.observers import Observer
from dsx.observe.tell import is_due, tell

if TYPE_CHECKING:
    from dsx.engine.engine import Engine

PHASES = ("forward", "backward", "step")


class ClockObserver(Observer):
    """Times the phases of an update on this rank, waiting for the device at each end, and prints their means.

    Forwards without gradients are not counted, nor are backwards that do not pass through ``engine.backward``.
    """

    def __init__(self, every: int | None) -> None:
        self.every = every
        self.last: dict[str, float] = {}
        """Milliseconds of the last update, by phase."""
        self._begun: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._window: dict[str, float] = {}
        self._updates = 0

    def before_forward(self, engine: Engine) -> None:
        """Forward begins."""
        if torch.is_grad_enabled():
            self._begin(engine, "forward")

    def after_forward(self, engine: Engine) -> None:
        """Forward has ended."""
        if torch.is_grad_enabled():
            self._end(engine, "forward")

    def before_backward(self, engine: Engine) -> None:
        """Backward begins."""
        self._begin(engine, "backward")

    def after_backward(self, engine: Engine) -> None:
        """Backward has ended."""
        self._end(engine, "backward")

    def before_step(self, engine: Engine) -> None:
        """The update begins."""
        self._begin(engine, "step")

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """The update has ended; print, where it is time."""
        self._end(engine, "step")
        self.last, self._spent = self._spent, {}
        self._updates += 1
        for phase, spent in self.last.items():
            self._window[phase] = self._window.get(phase, 0.0) + spent
        if is_due(engine.global_steps, self.every):
            means = [f"{p} {self._window[p] / self._updates:.2f} ms" for p in PHASES if p in self._window]
            tell(" | ".join((f"step {engine.global_steps}", "time an update", *means)))
            self._window, self._updates = {}, 0

    def _begin(self, engine: Engine, phase: str) -> None:
        engine.accelerator.synchronize()
        self._begun[phase] = perf_counter()

    def _end(self, engine: Engine, phase: str) -> None:
        begun = self._begun.pop(phase, None)
        if begun is None:  # it began before this observer saw it
            return
        engine.accelerator.synchronize()
        self._spent[phase] = self._spent.get(phase, 0.0) + (perf_counter() - begun) * 1000
