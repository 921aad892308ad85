"""The section ``acme_metrics``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dsx.plugin import Section


class MetricsConfig(Section):
    """Writes loss and gradient norm of each update."""

    enabled: bool = False
    """Write them. False: the plugin does nothing."""
    path: Annotated[str, Field(min_length=1)] = "acme-metrics.jsonl"
    """The file, to which lines are added; its folder must exist."""
    every: Annotated[int, Field(gt=0)] = 1
    """Updates between two lines."""
