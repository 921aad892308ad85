"""The section ``zero_optimization``, with DeepSpeed's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dsx.plugin import AUTO, Auto, Section

Count = Annotated[int, Field(ge=0)]


def _stage3(name: str, default: Any) -> Any:
    """A field that is written ``stage3_name``, or ``name``."""
    return Field(default=default, alias=f"stage3_{name}")


class OffloadSection(Section):
    """``offload_optimizer`` and ``offload_param``: where shards rest."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """Where the shards rest: none keeps them on the device. Others need a version of dsx-zero that has the tiers."""
    nvme_path: str | None = None
    """Folder for device nvme."""
    buffer_count: Count = 4
    """Buffers between file and memory."""
    buffer_size: Count = 100_000_000
    """Elements of one buffer (parameters)."""
    max_in_cpu: Count = 1_000_000_000
    """Parameter elements kept in host memory beside the file."""
    pin_memory: bool = True
    """Keep host memory page-locked."""
    pipeline_read: bool = False
    """Read the next shard while one is updated."""
    pipeline_write: bool = False
    """Write the last shard while one is updated."""
    fast_init: bool = False
    """Make states directly on the file."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Part of the update that is done on the host."""


class LeafModuleSection(Section):
    """``leaf_module``: modules gathered as one, whatever their forward calls."""

    classes: tuple[str, ...] = ()
    """Class names, with or without their module path."""
    names: tuple[str, ...] = ()
    """Full names within the model."""
    name_suffixes: tuple[str, ...] = ()
    """Ends of names within the model."""


class ZeroConfig(Section):
    """Sharded data parallelism: what rests whole, what rests as shards, and how it moves."""

    @model_validator(mode="before")
    @classmethod
    def _read_truth_values(cls, value: Any) -> Any:
        """The oldest configurations write ``"zero_optimization": true`` or ``"stage": true`` for stage 1."""
        if isinstance(value, bool):
            return {"stage": int(value)}
        if isinstance(value, Mapping) and isinstance(value.get("stage"), bool):
            return {**value, "stage": int(value["stage"])}
        return value

    stage: Literal[0, 1, 2, 3] = 0
    """0: all whole. 1: optimizer states sharded. 2: gradients too. 3: parameters too. true is read as 1."""

    reduce_bucket_size: Auto[Annotated[int, Field(gt=0)]] = Field(
        default=AUTO,
        json_schema_extra={
            "deepspeed": "5e8 elements whatever the model: 2 GB of fp32, and no overlap in a small model"
        },
    )
    """Elements reduced at once. auto: a fifth of the model, from 1e6 to 5e8, so that reduction overlaps backward."""
    allgather_bucket_size: Annotated[int, Field(gt=0)] = 500_000_000
    """Accepted: updated parameters travel in the buckets of the reduction, each at most this large."""
    overlap_comm: bool | None = Field(
        default=None,
        json_schema_extra={"deepspeed": "unset means yes in stage 3 only; in dsx it means yes in every stage"},
    )
    """Reduce while backward still runs. Unset means yes."""
    reduce_scatter: bool = True
    """Accepted: gradients always go straight to their owner; false would move the same sums with more bytes."""
    contiguous_gradients: bool = True
    """Accepted: gradients are always collected in one buffer a bucket."""
    allgather_partitions: bool = True
    """Accepted: updated shards always come together in one all-gather a bucket."""
    use_multi_rank_bucket_allreduce: bool = True
    """Accepted: a bucket is always reduced for all its owners at once."""
    round_robin_gradients: bool = False
    """Accepted: shards of a bucket are of equal size, so every rank always has the same part of each."""
    ignore_unused_parameters: bool = True
    """Parameters without a gradient are left alone. False: an update in which one has none is an error (stages 1-3)."""
    compute_grad_norm: bool = True
    """Accepted: the norm of the gradients is always known."""
    parameter_alignment: bool = False
    """Accepted: parameters always begin at 16-byte addresses."""
    load_from_fp32_weights: bool = True
    """Accepted: checkpoints hold master weights; the low-precision ones are derived from them."""
    elastic_checkpoint: bool = False
    """Accepted: every checkpoint loads at any number of ranks."""
    enable_sanity_checks: bool = False
    """After each update, check that every rank made the same collective calls; where not, all ranks say where."""
    sub_group_size: Annotated[int, Field(gt=0)] = 1_000_000_000
    """Accepted: elements updated at once where states are offloaded; states on the device are updated by bucket."""

    prefetch_bucket_size: Count = _stage3("prefetch_bucket_size", 50_000_000)
    """Elements gathered ahead of their use. 0: none."""
    param_persistence_threshold: Count = _stage3("param_persistence_threshold", 100_000)
    """Parameters with fewer elements rest whole: gathering them costs more than it saves."""
    model_persistence_threshold: Count = _stage3("model_persistence_threshold", 9_223_372_036_854_775_807)
    """At most this many elements rest whole because they are small."""
    max_live_parameters: Annotated[int, Field(gt=0)] = _stage3("max_live_parameters", 1_000_000_000)
    """Elements that may be whole at a time."""
    max_reuse_distance: Count = _stage3("max_reuse_distance", 1_000_000_000)
    """Parameters stay whole if they are used again before this many elements of others. 0: never."""
    module_granularity_threshold: Count = _stage3("module_granularity_threshold", 0)
    """Modules with fewer elements a parameter tensor on average are gathered as one, with all that is in them."""
    gather_16bit_weights_on_model_save: bool = _stage3("gather_16bit_weights_on_model_save", False)
    """Accepted: ``engine.full_state_dict()`` gives whole weights in every stage."""
    use_all_reduce_for_fetch_params: bool = _stage3("use_all_reduce_for_fetch_params", False)
    """Accepted: it moved the same parameters with more bytes."""
    allgather_sequential: bool = _stage3("allgather_sequential", False)
    """Gather one bucket at a time, without prefetching."""
    leaf_module: LeafModuleSection = Field(default_factory=LeafModuleSection)
    """Modules gathered as one."""
    memory_efficient_linear: bool = True
    """Accepted: no layer keeps gathered weights for backward; they are gathered again."""
    override_module_apply: bool = True
    """Accepted: ``Module.apply`` works under dsx.construct as it is."""
    log_trace_cache_warnings: bool = False
    """Warn when the order in which parameters are used has changed, so that prefetching begins anew."""
    pipeline_loading_checkpoint: bool = False
    """Accepted: parts of a checkpoint are read as they are needed."""

    offload_optimizer: OffloadSection | None = None
    """Where optimizer states rest."""
    offload_param: OffloadSection | None = None
    """Where parameters rest."""
    zero_hpz_partition_size: Annotated[int, Field(ge=1)] = 1
    """Ranks in a secondary shard. Above 1: needs a version of dsx-zero that has subgroups."""
    zero_quantized_weights: bool = False
    """Gather parameters as int8. Needs a version of dsx-zero that has quantised collectives."""
    zero_quantized_gradients: bool = False
    """Reduce gradients as int4. Needs a version of dsx-zero that has quantised collectives."""
    zero_quantized_nontrainable_weights: bool = False
    """Keep frozen weights quantised. Needs a version of dsx-zero that has quantised collectives."""
    save_muon_momentum_buffer_in_memory: bool = False
    """Accepted: Muon's momentum rests with the other states."""
    legacy_stage1: Literal[False] = False
    """Only false: the old stage 1 is gone."""
