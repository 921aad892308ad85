"""Sections that say which optimizer and schedule to use, and what to recompute rather than keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dsx.config.auto import AUTO
from dsx.config.section import Section


def _marked(value: Any) -> Any:
    """The same plain data, with each text ``"auto"`` as the typed value, so that planning can insist on a resolver."""
    if isinstance(value, Mapping):
        return {str(key): _marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item) for item in value]
    return AUTO if isinstance(value, str) and value == "auto" else value


Params = Annotated[Mapping[str, Any], AfterValidator(_marked)]
"""Keyword arguments for a component; checked by the component itself."""


class OptimizerSection(Section):
    """``optimizer``: a registered optimizer by name, or any class of ``torch.optim``."""

    type: str = Field(min_length=1)
    """Name of the optimizer, in any case: Adam, AdamW, SGD, Adagrad, Lion, Lamb, Muon, or a torch.optim class."""
    params: Params = Field(default_factory=dict)
    """Its keyword arguments, such as lr, betas, eps, weight_decay."""
    legacy_fusion: bool = False
    """Accepted without effect: it chose between two fused optimizers that dsx does not have."""


class SchedulerSection(Section):
    """``scheduler``: a registered learning-rate schedule by name, or one of ``torch.optim.lr_scheduler``."""

    type: str = Field(min_length=1)
    """Name of the schedule: WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, or a torch scheduler."""
    params: Params = Field(default_factory=dict)
    """Its keyword arguments."""


class ActivationCheckpointingSection(Section):
    """``activation_checkpointing``: forget activations in forward and compute them again in backward.

    The section configures ``dsx.activation.checkpoint`` within the engine's forward; only ``modules`` changes a model.
    """

    modules: tuple[str, ...] = ()
    """Checkpoint each call of these modules: class names, or names in the model with wildcards. Own to dsx."""
    partition_activations: bool = False
    """Split kept activations over ranks that hold the same ones. No effect without tensor parallelism: none do."""
    cpu_checkpointing: bool = False
    """Keep the inputs of checkpointed blocks in host memory."""
    contiguous_memory_optimization: bool = False
    """Accepted without effect: torch's allocator reuses blocks of equal size. Needs number_checkpoints."""
    number_checkpoints: int | None = Field(default=None, gt=0)
    """How many of ``modules`` are checkpointed: the first of each of so many parts. None: all."""
    partitioner: str = Field(default="uniform", min_length=1)
    """What cuts ``modules`` into that many parts: uniform, parameters, or a plugin's. Own to dsx."""
    method: str = Field(default="non_reentrant", min_length=1)
    """How ``modules`` are computed again: non_reentrant, reentrant, or a plugin's. Own to dsx."""
    synchronize_checkpoint_boundary: bool = False
    """Wait for the device at each boundary; for measuring."""
    profile: bool = False
    """Mark each checkpointed block as ``dsx.checkpoint`` in torch's profiler."""
