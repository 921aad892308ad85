"""What a stage means: one frozen policy, and which parameters rest whole in spite of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from dsx.config.auto import AutoType
from dsx.flat.policy import Policy
from dsx_zero.config import ZeroConfig

SMALLEST_BUCKET = 1_000_000
LARGEST_BUCKET = 500_000_000
BUCKETS = 5


def bucket_size(config: ZeroConfig, parameters: int | None) -> int:
    """Elements in one reduction, for a model of this size."""
    if not isinstance(config.reduce_bucket_size, AutoType):
        return config.reduce_bucket_size
    if parameters is None:
        return LARGEST_BUCKET
    return max(SMALLEST_BUCKET, min(LARGEST_BUCKET, parameters // BUCKETS))


def bucket_reason(size: int, parameters: int | None) -> str:
    """Why an ``"auto"`` became this size."""
    if parameters is None:
        return "the largest that auto takes, as the size of the model is not known here; with it, a fifth of the model"
    if size == parameters // BUCKETS:
        return "a fifth of the model, so that reduction overlaps backward"
    return f"{'the least' if size == SMALLEST_BUCKET else 'the most'} that auto takes, for {parameters:,} parameters"


def policy_for(config: ZeroConfig, base: Policy) -> Policy:
    """The row of the policy table for this stage."""
    return replace(
        base,
        shard_state=config.stage >= 1,
        reduce_each=config.stage >= 2,
        shard_parameters=config.stage >= 3,
        overlap=config.overlap_comm is not False,
    )


@dataclass(frozen=True, slots=True)
class Persistence:
    """Which parameters rest whole in stage 3 because they are small: names, decided once for a model."""

    names: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, config: ZeroConfig) -> Persistence:
        """The smallest first, until the model's budget is spent."""
        small = sorted(
            (param.numel(), name)
            for name, param in model.named_parameters()
            if param.numel() < config.param_persistence_threshold or param.numel() == 0
        )
        names, total = set(), 0
        for numel, name in small:
            total += numel
            if total > config.model_persistence_threshold:
                break
            names.add(name)
        return cls(frozenset(names))


def unsupported(config: ZeroConfig) -> list[tuple[str, Any]]:
    """Keys that ask for what this version does not have, with what they are set to."""
    found: list[tuple[str, Any]] = []
    for key in ("offload_optimizer", "offload_param"):
        section = getattr(config, key)
        if section is not None and section.device != "none":
            found.append((f"{key}.device", section.device))
    if config.zero_hpz_partition_size > 1:
        found.append(("zero_hpz_partition_size", config.zero_hpz_partition_size))
    for key in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"):
        if getattr(config, key):
            found.append((key, True))
    return found
