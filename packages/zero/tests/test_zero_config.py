"""The section ``zero_optimization``: DeepSpeed's keys are taken, wrong ones refused by name, missing parts named."""

from __future__ import annotations

from typing import Any

import pytest
from zero_models import engine_of, make

import dsx
from dsx.errors import ConfigError, DsxError, PlanError
from dsx.plugin.types import World
from dsx_zero.config import ZeroConfig

DEEPSPEED = {
    "stage": 3,
    "contiguous_gradients": True,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_prefetch_bucket_size": 1e7,
    "stage3_param_persistence_threshold": 1e5,
    "reduce_bucket_size": 1e7,
    "sub_group_size": 1e9,
    "overlap_comm": True,
    "stage3_gather_16bit_weights_on_model_save": True,
    "zero_hpz_partition_size": 1,
    "round_robin_gradients": True,
    "allgather_partitions": True,
    "allgather_bucket_size": 5e8,
    "reduce_scatter": True,
    "elastic_checkpoint": True,
    "ignore_unused_parameters": True,
    "offload_optimizer": {"device": "none"},
    "offload_param": {"device": "none", "pin_memory": True},
}


def plan_of(section: dict[str, Any], world: int = 1) -> Any:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": section}
    return dsx.make_plan(config, world=World(size=world))


def test_deepspeeds_page_is_taken() -> None:
    section = plan_of(DEEPSPEED).config.section(ZeroConfig)
    assert section.stage == 3
    assert section.prefetch_bucket_size == 10_000_000
    assert section.max_live_parameters == 10**9
    assert section.param_persistence_threshold == 100_000
    assert section.reduce_bucket_size == 10_000_000


def test_fields_go_by_deepspeeds_name_or_their_own() -> None:
    assert ZeroConfig.model_validate({"prefetch_bucket_size": 5}).prefetch_bucket_size == 5
    assert ZeroConfig.model_validate({"stage3_prefetch_bucket_size": 5}).prefetch_bucket_size == 5
    assert ZeroConfig.model_validate({"stage": True}).stage == 1, "DeepSpeed's oldest form"


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"stage": 4}, "zero_optimization.stage"),
        ({"stage": 2, "reduce_bucket_sise": 5}, "did you mean 'reduce_bucket_size'"),
        ({"stage3_max_live_parameters": 0}, "stage3_max_live_parameters"),
        ({"stage3_prefetch_bucket_size": -1}, "stage3_prefetch_bucket_size"),
        ({"offload_optimizer": {"devise": "cpu"}}, "zero_optimization.offload_optimizer.devise"),
        ({"legacy_stage1": True}, "legacy_stage1"),
    ],
)
def test_wrong_keys_and_values_are_refused_by_path(section: dict[str, Any], text: str) -> None:
    """B01: within the section too, before any process group exists."""
    with pytest.raises(ConfigError) as caught:
        plan_of(section)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, "offload_optimizer.device"),
        ({"stage": 3, "zero_quantized_weights": True}, "zero_quantized_weights"),
        ({"stage": 3, "zero_hpz_partition_size": 2}, "zero_hpz_partition_size"),
    ],
)
def test_what_is_not_built_is_refused_while_planning(section: dict[str, Any], key: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(section, world=2)
    assert f"zero_optimization.{key}" in str(caught.value)


def test_claims_and_owner_follow_the_stage() -> None:
    states = [plan_of({"stage": stage}).states for stage in range(4)]
    sharded = [[name for name in ("optim", "grad", "param") if state[name] == "sharded"] for state in states]
    assert sharded == [[], ["optim"], ["optim", "grad"], ["optim", "grad", "param"]]
    assert [plan_of({"stage": stage}).owners.get("driver") for stage in range(4)] == [None, "zero", "zero", "zero"]


def test_auto_is_resolved_with_a_reason() -> None:
    resolved = {entry.key: entry for entry in plan_of({"stage": 2, "reduce_bucket_size": "auto"}).resolved}
    entry = resolved["zero_optimization.reduce_bucket_size"]
    assert entry.value > 0
    assert entry.why


def test_one_rank_runs_every_stage_without_a_process_group() -> None:
    for stage in range(4):
        with engine_of(
            make("Mlp"), {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
        ) as engine:
            assert engine.zero_optimization_stage() == stage
            with pytest.raises(DsxError, match="optimizer"):
                engine.step()
