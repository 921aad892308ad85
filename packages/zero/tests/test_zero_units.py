"""Units: every parameter has one, blocks of lists are gathered as one, and budgets and declarations decide."""

from __future__ import annotations

import torch
from torch import nn
from zero_models import MODELS, Block, Blocks, Mlp, make

from dsx_zero.config import ZeroConfig
from dsx_zero.policy import BUCKETS, Persistence, bucket_size, policy_for, unsupported
from dsx_zero.units import units_of


def config(**keys: object) -> ZeroConfig:
    return ZeroConfig.model_validate({"stage": 3, **keys})


def test_every_parameter_has_one_unit_that_is_a_module_around_it() -> None:
    for kind in MODELS:
        model = make(kind)
        units = units_of(model, config())
        modules = dict(model.named_modules())
        assert units.keys() == {name for name, _ in model.named_parameters()}
        for name, unit in units.items():
            assert unit in modules
            assert not unit or name.startswith(f"{unit}.")


def test_elements_of_lists_are_units_and_the_rest_goes_by_module() -> None:
    units = units_of(Blocks(), config())
    assert units["gain"] == ""
    assert units["head.weight"] == units["head.bias"] == "head"
    assert {units[name] for name in units if name.startswith("blocks.1.")} == {"blocks.1"}


def test_a_block_larger_than_the_budget_is_divided() -> None:
    for key in ("stage3_prefetch_bucket_size", "stage3_max_live_parameters"):
        units = units_of(Blocks(), config(**{key: 20}))
        assert units["blocks.1.norm.weight"] == "blocks.1.norm"
        assert units["blocks.1.linear.bias"] == "blocks.1.linear"


def test_lists_of_lists_take_the_outer_block_where_it_fits() -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ModuleList([Block(), Block()])), nn.Linear(4, 4)])
    assert set(units_of(model, config()).values()) == {"0", "1"}
    small = units_of(model, config(stage3_prefetch_bucket_size=60))
    assert {"0.0", "0.1.0", "0.1.1", "1"} == set(small.values())


def test_declared_leaves_are_units_by_class_name_and_suffix() -> None:
    for leaf in (
        {"classes": ["Block"]},
        {"classes": [f"{Block.__module__}.Block"]},
        {"names": ["blocks.1"]},
        {"name_suffixes": ["ocks.1"]},
    ):
        units = units_of(Blocks(), config(leaf_module=leaf, stage3_prefetch_bucket_size=1))
        assert units["blocks.1.norm.weight"] == units["blocks.1.linear.weight"] == "blocks.1", leaf
    undeclared = units_of(Blocks(), config(leaf_module={"names": ["blocks.2"]}, stage3_prefetch_bucket_size=1))
    assert undeclared["blocks.1.norm.weight"] == "blocks.1.norm"


def test_small_parameters_make_a_coarse_unit() -> None:
    assert set(units_of(Mlp(), config(stage3_module_granularity_threshold=10**6)).values()) == {""}
    assert set(units_of(Mlp(), config(stage3_module_granularity_threshold=1)).values()) > {""}


def test_persistent_parameters_are_the_smallest_within_the_budget() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 2), "c": nn.Linear(10, 10)})
    model.register_parameter("none", nn.Parameter(torch.empty(0)))

    def names(**keys: object) -> set[str]:
        return set(Persistence.of(model, config(**keys)).names)

    assert names(stage3_param_persistence_threshold=0) == {"none"}, "nothing to shard"
    assert names(stage3_param_persistence_threshold=6) == {"none", "a.weight", "a.bias", "b.bias"}
    assert names(stage3_param_persistence_threshold=7) == {"none", "a.weight", "a.bias", "b.bias", "b.weight"}
    budget = names(stage3_param_persistence_threshold=7, stage3_model_persistence_threshold=4)
    assert budget == {"none", "a.bias", "b.bias"}


def test_bucket_sizes_follow_the_model_unless_set() -> None:
    assert bucket_size(config(reduce_bucket_size=77), 10**9) == 77
    assert bucket_size(config(), 50_000_000) == 50_000_000 // BUCKETS
    assert bucket_size(config(), 100) == 1_000_000
    assert bucket_size(config(), 10**12) == 500_000_000
    assert bucket_size(config(), None) == 500_000_000


def test_each_stage_is_its_row_of_the_table() -> None:
    from dsx.flat.policy import Policy

    rows = [policy_for(config(stage=stage), Policy()) for stage in range(4)]
    assert [row.shard_state for row in rows] == [False, True, True, True]
    assert [row.reduce_each for row in rows] == [False, False, True, True]
    assert [row.shard_parameters for row in rows] == [False, False, False, True]
    assert all(row.overlap for row in rows)
    assert not policy_for(config(overlap_comm=False), Policy()).overlap


def test_what_this_version_lacks_is_named() -> None:
    assert unsupported(config()) == []
    assert unsupported(config(offload_optimizer={"device": "none"})) == []
    assert unsupported(config(offload_optimizer={"device": "cpu"})) == [("offload_optimizer.device", "cpu")]
    assert unsupported(config(offload_param={"device": "nvme"})) == [("offload_param.device", "nvme")]
    assert unsupported(config(zero_hpz_partition_size=2)) == [("zero_hpz_partition_size", 2)]
    for key in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"):
        assert unsupported(config(**{key: True})) == [(key, True)]
