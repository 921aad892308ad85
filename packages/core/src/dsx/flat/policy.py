"""What rests where, and when it moves: the frozen values from which every ZeRO stage is built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """One row of the table in the architecture: how the gradient path treats a bucket.

    The default is plain data parallelism: all is whole, gradients are reduced once, at the last backward.
    """

    shard_state: bool = False
    """Masters and optimizer state rest as shards; gradients are reduced to their owner."""
    reduce_each: bool = False
    """Gradients are reduced after each backward and rest as shards, instead of whole until the last."""
    shard_parameters: bool = False
    """Parameters rest as shards and are gathered around their use."""
    overlap: bool = True
    """Reduction runs beside the backward that feeds it."""
    bucket_numel: int = 1 << 21
    """Elements in one reduction."""
    average: bool = True
    """Gradients are the mean over replicas, not the sum."""
    predivide: float = 1.0
    """Gradients are divided by this as they arrive, to keep a low-precision sum in range; undone at the update."""
