"""What is written after each update, and the observer that writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dsx.engine.observers import Observer
from dsx.monitor.all import MonitorSet

if TYPE_CHECKING:
    from dsx.engine.engine import Engine

PREFIX = "Train/Samples/"
"""DeepSpeed's: metrics over the samples seen so far, which are the step that monitors get."""


def values_of(engine: Engine, *, rate: float | None) -> dict[str, float]:
    """The metrics of the update that has just ended, below ``Train/Samples/``.

    ``train_loss`` (this rank's mean over micro-batches, where losses pass through the engine), ``lr`` (the rate that
    the update used, of the first group), ``loss_scale`` (only where losses are scaled), ``grad_norm`` (unscaled,
    before clipping), ``updates`` and ``skipped``.
    """
    values = {"updates": float(engine.global_steps), "skipped": float(engine.skipped_steps)}
    loss, norm = engine.last_loss, engine.get_global_grad_norm()
    if loss is not None:
        values["train_loss"] = float(loss)
    if rate is not None:
        values["lr"] = rate
    if norm is not None:
        values["grad_norm"] = norm
    if engine.scaler.active:
        values["loss_scale"] = engine.loss_scale
    return {PREFIX + name: value for name, value in values.items()}


class MonitorObserver(Observer):
    """Writes the engine's metrics after each update, by the number of samples seen.

    times: gives milliseconds of the update that has ended by phase, written as ``elapsed_time_ms_forward`` and so on.
    """

    def __init__(self, monitors: MonitorSet, *, times: Callable[[], Mapping[str, float]] = dict) -> None:
        self.monitors = monitors
        self._times = times
        self._rate: float | None = None

    def before_step(self, engine: Engine) -> None:
        """The rate is that of the coming update."""
        rates = engine.get_lr()
        self._rate = rates[0] if rates else None

    def after_step(self, engine: Engine, *, updated: bool) -> None:
        """Write one step."""
        values = values_of(engine, rate=self._rate)
        values |= {f"{PREFIX}elapsed_time_ms_{phase}": spent for phase, spent in self._times().items()}
        self.monitors.write(values, step=engine.global_samples)

    def close(self, engine: Engine) -> None:
        """Close the monitors with the engine."""
        self.monitors.close()
