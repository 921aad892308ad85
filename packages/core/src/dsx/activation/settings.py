"""How activations are checkpointed: what the core honours of the configuration section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsx.config.training import ActivationCheckpointingSection


@dataclass(frozen=True, slots=True)
class ActivationSettings:
    """One way of checkpointing activations."""

    use_reentrant: bool = False
    """Which of torch's two implementations: the reentrant one runs forward under ``no_grad``."""
    preserve_rng_state: bool = True
    """Recompute with the random state of the forward, so that dropout drops the same."""
    offload: bool = False
    """Keep the inputs of checkpointed functions in pinned host memory until backward."""
    at_most: int | None = None
    """How many of the chosen modules are checkpointed: the first of each of so many parts; ``None``: all."""
    synchronize: bool = False
    """Wait for the device before and after each checkpointed function, for measuring."""
    profile: bool = False
    """Mark forward and recomputation as ``dsx.checkpoint`` ranges in torch's profiler."""


def settings_from(section: ActivationCheckpointingSection, *, use_reentrant: bool = False) -> ActivationSettings:
    """The settings that ``activation_checkpointing`` asks for."""
    return ActivationSettings(
        use_reentrant=use_reentrant,
        offload=section.cpu_checkpointing,
        at_most=section.number_checkpoints,
        synchronize=section.synchronize_checkpoint_boundary,
        profile=section.profile,
    )


def unheeded(section: ActivationCheckpointingSection) -> tuple[str, ...]:
    """For each given key that has no effect in the core, a sentence that says why."""
    notes = []
    if section.partition_activations:
        notes.append(
            "activation_checkpointing.partition_activations has no effect without tensor parallelism: no two ranks "
            "hold the same activations"
        )
    if section.contiguous_memory_optimization:
        notes.append(
            "activation_checkpointing.contiguous_memory_optimization has no effect: torch's allocator keeps blocks of "
            "equal size for reuse; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation"
        )
    return tuple(notes)
