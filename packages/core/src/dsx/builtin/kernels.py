"""The torch reference of each operation, as a kernel variant that runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from dsx.kernels import OPERATIONS
from dsx.plugin.types import Kernel, Score


def components() -> Iterator[Kernel]:
    """One variant ``torch`` for each operation, with the lowest score."""
    for operation in OPERATIONS:
        yield Kernel(operation, "torch", load=f"dsx.kernels.{operation}:{operation}", score=_reference)


def _reference() -> Score:
    return Score(1, "the torch reference, for any device and dtype")
