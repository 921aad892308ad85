"""Ways of cutting a list of layers into parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import PARTITIONER
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Named as in ``activation_checkpointing.partitioner``; called as ``f(layers, parts=…)``."""
    load = "dsx.partition.partitioners"
    yield Component(PARTITIONER, "uniform", load=f"{load}:uniform", summary="as many layers in each part")
    yield Component(
        PARTITIONER, "parameters", load=f"{load}:parameters", summary="the largest sum of parameters is least"
    )
