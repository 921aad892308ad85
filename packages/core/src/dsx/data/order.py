"""Which samples a rank gets, in which order. Arithmetic only.

The samples of an epoch are put in an order that all ranks know, and dealt in *blocks* of ``batch_size * size``: the
k-th batch of every rank comes from the k-th block. So the k-th update sees the same samples whatever the number of
ranks, as long as the global batch is the same, and a position is a number of samples, whoever has taken them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import TypeVar

import torch

T = TypeVar("T")

_GOLDEN = 0x9E3779B97F4A7C15


def order_of_epoch(samples: int, *, shuffle: bool, seed: int, epoch: int) -> Sequence[int]:
    """The order of ``range(samples)`` in this epoch, equal on every rank and another in every epoch."""
    if not shuffle:
        return range(samples)
    generator = torch.Generator()
    # Spread, so that neighbouring seeds do not share epochs, as they would under seed + epoch.
    generator.manual_seed((seed * _GOLDEN + epoch) % 2**63)
    order: list[int] = torch.randperm(samples, generator=generator).tolist()
    return order


def share(block: Sequence[T], *, rank: int, size: int) -> list[T]:
    """One rank's consecutive part of a block, equally long on every rank.

    A block that does not divide is padded with its own first samples, over again if need be.
    """
    each = -(-len(block) // size)
    return list(islice(cycle(block), rank * each, (rank + 1) * each))


def blocks(samples: int, *, block: int, start: int, drop_last: bool) -> Iterator[tuple[int, int]]:
    """[first, last) of each block from position ``start``; with ``drop_last`` only full ones."""
    for first in range(start, samples, block):
        if first + block <= samples or not drop_last:
            yield first, min(first + block, samples)


def count(samples: int, *, block: int, drop_last: bool) -> int:
    """Batches that every rank gets in an epoch."""
    return samples // block if drop_last else -(-samples // block)
