"""What the package does to a training: with ``acme_metrics.enabled``, one observer on the first rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from acme_metrics.config import MetricsConfig
from dsx.plugin import MONITOR, Component, Observer, PluginSpec, ReportRow, hookimpl

if TYPE_CHECKING:
    from dsx.planning.plan import Plan

SPEC = PluginSpec(
    name="metrics-of-acme", api=1, summary="metrics as JSON lines", sections={"acme_metrics": MetricsConfig}
)


@hookimpl
def dsx_plugin() -> PluginSpec:
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    yield Component(MONITOR, "acme-logging", load="acme_metrics.monitor:LoggingMonitor", summary="Python's logging")


@hookimpl
def dsx_observers(plan: Plan) -> Iterator[Observer]:
    section = plan.config.section(MetricsConfig)
    if section.enabled and plan.world.rank == 0:
        from acme_metrics.observer import MetricsObserver

        yield MetricsObserver(section)


@hookimpl
def dsx_report() -> Iterator[ReportRow]:
    yield ReportRow("acme-metrics", "format", "JSON lines")
