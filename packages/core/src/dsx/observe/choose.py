"""Which of the core's own observers a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dsx.engine.observers import Observer
from dsx.monitor.all import enabled, monitors_from
from dsx.monitor.observer import MonitorObserver
from dsx.observe.clock import ClockObserver
from dsx.observe.communication import CommunicationObserver
from dsx.observe.memory import MemoryObserver
from dsx.observe.progress import ProgressObserver
from dsx.observe.tell import interval
from dsx.registry.registry import Registry

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


def observers_for(engine: Engine) -> Iterator[Observer]:
    """Rank 0's observers; none on other ranks, and none that the configuration does not ask for."""
    config = engine.config
    if engine.plan.world.rank != 0:
        return
    every = interval(config)
    if every is not None:
        throughput = config.timers.throughput
        yield ProgressObserver(every, timed=throughput.enabled, synchronized=throughput.synchronized)
    times: Callable[[], Mapping[str, float]] = dict
    if config.wall_clock_breakdown:
        clock = ClockObserver(interval(config, otherwise=1))
        times = lambda: clock.last  # noqa: E731
        yield clock
    if config.memory_breakdown:
        yield MemoryObserver(interval(config, otherwise=1))
    if config.comms_logger.enabled:
        yield CommunicationObserver(config.comms_logger, every)
    if any(enabled(config)):
        # After the clock, whose times of the same update are written too.
        monitors = monitors_from(config, registry=Registry(engine.plugins), rank=0)
        yield MonitorObserver(monitors, times=times)
