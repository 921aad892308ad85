"""Where metrics can be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import MONITOR
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Built with their configuration section's keys as keyword arguments, ``enabled`` left out."""
    yield Component(MONITOR, "csv", load="dsx.monitor.files:CsvMonitor", summary="CSV, one file a metric")
    yield Component(MONITOR, "jsonl", load="dsx.monitor.files:JsonLinesMonitor", summary="JSON lines, one file a run")
    yield Component(
        MONITOR, "tensorboard", load="dsx.monitor.services:TensorBoardMonitor", summary="TensorBoard event files"
    )
    yield Component(MONITOR, "wandb", load="dsx.monitor.services:WandbMonitor", summary="Weights & Biases")
    yield Component(MONITOR, "comet", load="dsx.monitor.services:CometMonitor", summary="Comet")
    yield Component(
        MONITOR, "prometheus", load="dsx.monitor.prometheus:PrometheusMonitor", summary="served to Prometheus"
    )
