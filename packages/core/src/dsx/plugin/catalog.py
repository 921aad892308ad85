"""Who brings what: the distribution for each section, component name and mesh axis, installed or not.

Plain data about names, so that a missing thing can be answered with the distribution to install. Nothing here is
imported, and nothing behaves differently for a name that is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SECTIONS: Mapping[str, str] = {
    "zero_optimization": "dsx-zero",
    "aio": "dsx-zero",
    "pipeline": "dsx-pipeline",
    "expert_parallel": "dsx-moe",
    "moe": "dsx-moe",
    "use_data_before_expert_parallelism": "dsx-moe",
    "tensor_parallel": "dsx-tensor",
    "sequence_parallel": "dsx-tensor",
    "sequence_parallel_size": "dsx-tensor",
    "seq_parallel_communication_data_type": "dsx-tensor",
    "inference": "dsx-inference",
    "hybrid_engine": "dsx-inference",
    "weight_quantization": "dsx-inference",
    "compression_training": "dsx-compression",
    "quantize_training": "dsx-compression",
    "eigenvalue": "dsx-compression",
    "sparse_attention": "dsx-science",
    "autotuning": "dsx-tuning",
    "flops_profiler": "dsx-tuning",
    "elasticity": "dsx-tuning",
    "data_efficiency": "dsx-data",
    "curriculum_learning": "dsx-data",
    "progressive_layer_drop": "dsx-data",
    "native": "dsx-native",
}
"""Top-level key -> the distribution whose plugin owns it."""

COMPONENTS: Mapping[str, Mapping[str, str]] = {
    "optimizer": {
        "onebitadam": "dsx-compression",
        "onebitlamb": "dsx-compression",
        "zerooneadam": "dsx-compression",
    },
    "partitioner": {"type": "dsx-pipeline", "profile": "dsx-pipeline"},
    "gate": {"topk": "dsx-moe", "top1": "dsx-moe", "top2": "dsx-moe"},
    "codec": {"onebit": "dsx-compression"},
}
"""Kind -> component name (lower case) -> the distribution that registers it."""

AXES: Mapping[str, str] = {
    "pipe": "dsx-pipeline",
    "expert": "dsx-moe",
    "tensor": "dsx-tensor",
    "sequence": "dsx-tensor",
}
"""Mesh axis -> the distribution that names it; ``data`` is the core's own."""

VARIANTS: Mapping[str, str] = {"native": "dsx-native"}
"""Kernel variant -> the distribution that offers it."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A key of DeepSpeed that no distribution of dsx carries: why, and what to use."""

    why: str
    instead: str


GONE: Mapping[str, Gone] = {
    "amp": Gone("NVIDIA Apex is no longer maintained", 'use "bf16": {"enabled": true}, fp16, or torch_autocast'),
    "sparse_gradients": Gone(
        "gradients of embeddings are reduced densely, which is faster on current networks",
        "remove the key; nn.Embedding(sparse=False) is what torch makes by default",
    ),
    "graph_harvesting": Gone("it captured small kernels that one fused update now replaces", "remove the key"),
    "nebula": Gone("its service has ended", "remove the key; use section checkpoint"),
    "datastates_ckpt": Gone("it needs a checkpoint library of its own", "remove the key; use section checkpoint"),
    "compile": Gone("DeepCompile's graph passes have no counterpart", "call engine.compile(), which is torch.compile"),
}
"""Top-level keys that are explained rather than honoured."""


def install(distribution: str) -> str:
    """The command that brings a distribution."""
    return f"pip install {distribution}"


def distribution_of(kind: str, name: str) -> str:
    """The distribution that registers this component, or nothing where none is known to."""
    return COMPONENTS.get(kind, {}).get(name.lower(), "")
