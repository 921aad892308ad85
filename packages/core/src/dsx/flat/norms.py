"""Norms over shards: each element counted by its owner, so no layout changes the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dsx.comm.collectives import Collectives
from dsx.errors import EngineError
from dsx.flat.bucket import Bucket


def global_norm(buckets: Sequence[Bucket], *, order: float, divisor: float, control: Collectives) -> float:
    """The norm of all reduced gradients over the ranks of ``control``; nan where any element is not finite.

    ``divisor`` is by what the sums in the buckets are divided to be gradients. Raises EngineError for an order that
    is not above 0.
    """
    if not order > 0:
        raise EngineError(f"norm order is {order}, wanted a number > 0 or inf")
    infinite = math.isinf(order)
    mine = _share(buckets, order, divisor)
    finite = math.isfinite(mine)
    # A maximum may lose a nan, so what is not finite travels as a flag of its own.
    word = torch.tensor([mine if finite else 0.0, 0.0 if finite else 1.0], dtype=torch.float64)
    control.all_reduce(word, op="max" if infinite else "sum", site="gradient norm")
    total, broken = word.tolist()
    if broken:
        return math.nan
    return float(total) if infinite else float(total ** (1.0 / order))


def _share(buckets: Sequence[Bucket], order: float, divisor: float) -> float:
    """What this rank owns: the sum of |g|^order, or the largest |g|; the device is waited for once."""
    shares = [
        torch.linalg.vector_norm(bucket.gradients.owned, order, dtype=torch.float32).double() / divisor
        for bucket in buckets
        if bucket.gradients is not None and bucket.gradients.owned is not None and bucket.replica_group.rank == 0
    ]
    if not shares:
        return 0.0
    stacked = torch.stack(shares)
    return float(stacked.amax() if math.isinf(order) else stacked.pow(order).sum())
