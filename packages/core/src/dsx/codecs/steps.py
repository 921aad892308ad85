"""How far a codec goes at a time, so that what it needs beside its tensors stays small."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

ON_HOST = 1 << 16
"""Elements at a time on a processor: what is made of them stays in its cache."""
ON_DEVICE = 1 << 24
"""Elements at a time elsewhere: few launches, and at most 64 MiB of fp32."""


def steps(values: Tensor) -> Iterator[tuple[int, int]]:
    """(start, stop) ranges that cover a flat tensor, all but the last as long as a power of two."""
    step = ON_HOST if values.device.type == "cpu" else ON_DEVICE
    for start in range(0, values.numel(), step):
        yield start, min(start + step, values.numel())
