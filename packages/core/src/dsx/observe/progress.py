"""The line of ``steps_per_print``."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from dsx.engine.observers import Observer
from dsx.observe.tell import is_due, tell

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


class ProgressObserver(Observer):
    """Prints update, loss, rate, norm, loss scale, samples per second and skipped updates, every so many updates.

    The loss is this rank's, the rate the one that the update used. Samples are counted from the first forward after
    the last line, over all ranks. Between two lines nothing waits for the device.
    """

    def __init__(self, every: int | None, *, timed: bool = True, synchronized: bool = True) -> None:
        self.every = every
        self.timed = timed
        self.synchronized = synchronized
        self._begun: tuple[float, int] | None = None
        self._rate: float | None = None

    def before_forward(self, engine: Engine) -> None:
        """The clock starts."""
        if self.timed and self._begun is None:
            self._begun = (perf_counter(), engine.global_samples)

    def before_step(self, engine: Engine) -> None:
        """The rate is that of the coming update."""
        if is_due(engine.global_steps + 1, self.every):
            rates = engine.get_lr()
            self._rate = rates[0] if rates else None

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Print, where it is time."""
        if is_due(engine.global_steps, self.every):
            tell(" | ".join(self._parts(engine)))
            self._begun = None

    def _parts(self, engine: Engine) -> list[str]:
        parts = [f"step {engine.global_steps}"]
        loss, norm = engine.last_loss, engine.get_global_grad_norm()
        if loss is not None:
            parts.append(f"loss {float(loss):.4f}")
        if self._rate is not None:
            parts.append(f"lr {self._rate:.3e}")
        if norm is not None:
            parts.append(f"grad norm {norm:.4f}")
        if engine.scaler.active:
            parts.append(f"loss scale {engine.loss_scale:g}")
        if self._begun is not None:
            parts.append(f"{self._throughput(engine, *self._begun):.1f} samples/s")
        parts.append(f"skipped {engine.skipped_steps}")
        return parts

    def _throughput(self, engine: Engine, begin: float, samples: int) -> float:
        if self.synchronized:
            engine.accelerator.synchronize()
        return (engine.global_samples - samples) / max(perf_counter() - begin, 1e-9)
