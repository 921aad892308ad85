"""``memory_breakdown``: memory in use around forward, backward and step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsx.accelerator.cpu import CpuAccelerator
from dsx.engine.observers import Observer
from dsx.observe.tell import is_due, tell

if TYPE_CHECKING:
    from dsx.engine.engine import Engine

GIB = 2**30


class MemoryObserver(Observer):
    """Prints memory in use before and after each phase of the last micro-batch, and of the process.

    On the host both are the resident bytes of this process; on a device the first are those in tensors.
    """

    def __init__(self, every: int | None) -> None:
        self.every = every
        self._before: dict[str, int] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def before_forward(self, engine: Engine) -> None:
        """Forward begins."""
        self._begin(engine, "forward")

    def after_forward(self, engine: Engine) -> None:
        """Forward has ended."""
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
        if is_due(engine.global_steps, self.every):
            seen = [f"{phase} {a / GIB:.3f} → {b / GIB:.3f} GiB" for phase, (a, b) in self._seen.items()]
            process = f"process {CpuAccelerator().memory_allocated() / GIB:.3f} GiB"
            tell(" | ".join((f"step {engine.global_steps}", f"memory on {engine.device.type}", *seen, process)))
            self._seen = {}

    def _begin(self, engine: Engine, phase: str) -> None:
        self._before[phase] = engine.accelerator.memory_allocated()

    def _end(self, engine: Engine, phase: str) -> None:
        before = self._before.pop(phase, None)
        if before is not None:
            self._seen[phase] = (before, engine.accelerator.memory_allocated())
