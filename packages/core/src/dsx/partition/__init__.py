"""Lists of layers cut into contiguous parts: of equal count, or of equal weight."""

from __future__ import annotations

from dsx.partition.cut import cut, layer_of
from dsx.partition.partitioners import parameters, uniform

__all__ = ["cut", "layer_of", "parameters", "uniform"]
