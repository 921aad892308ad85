"""Norms over shards: each element counted by its owner, so no layout changes the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dsx.comm.collectives import Collectives
from dsx.errors import EngineError
from dsx.flat.bucket import Bucket


def bucket_power(bucket: Bucket, *, order: float, divisor: float) -> float:
    """This rank's share: the sum of |g|^order over what it owns, or the largest |g| for infinite order."""
    if not order > 0:
        raise EngineError(f"norm order is {order}, wanted a number > 0 or inf")
    gradients = bucket.gradients
    if gradients is None or gradients.owned is None or bucket.replica_group.rank != 0:
        return 0.0
    value = float(torch.linalg.vector_norm(gradients.owned, order, dtype=torch.float32)) / divisor
    return value if math.isinf(order) else value**order


def combine(powers: Sequence[float], *, order: float, world: Collectives) -> float:
    """The norm over the world from every rank's shares."""
    infinite = math.isinf(order)
    finite = all(map(math.isfinite, powers))
    mine = (max(powers, default=0.0) if infinite else math.fsum(powers)) if finite else 0.0
    # A maximum may lose a nan, so what is not finite travels as a flag of its own.
    word = torch.tensor([mine, 0.0 if finite else 1.0], dtype=torch.float64)
    world.all_reduce(word, op="max" if infinite else "sum", site="gradient norm")
    total, broken = word.tolist()
    if broken:
        return math.nan
    return total if infinite else float(total ** (1.0 / order))
