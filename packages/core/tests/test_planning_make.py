"""Plans: auto resolved with reasons or refused, equal on every rank, described, and different where it matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_plugins import manager, plugin
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.errors import ConfigError, PlanError, PluginError
from dsx.planning.make import make_plan
from dsx.planning.plan import Plan
from dsx.plugin import AUTO, Auto, Facts, MeshAxis, ModelPass, Phase, Resolved, Section, World, sets
from dsx.plugin.manager import PluginManager

BATCH = {"train_micro_batch_size_per_gpu": 2}


class Zero(Section):
    """A section with an automatic key."""

    bucket: Auto[int] = AUTO
    """Elements in a bucket."""


def zero(*answers: Resolved, **hooks: Any) -> PluginManager:
    return manager(
        plugin("zero", sections={"zero_optimization": Zero}, dsx_resolve=lambda config, world, facts: answers, **hooks)
    )


def plan_of(source: dict[str, Any], *, size: int = 1, plugins: PluginManager | None = None, **facts: Any) -> Plan:
    return make_plan(source, world=World(size=size), facts=Facts(**facts), plugins=plugins or manager())


def test_plugin_resolves_its_own_auto() -> None:
    answer = Resolved("zero_optimization.bucket", 64, "a tenth of the model")
    plan = plan_of(BATCH, plugins=zero(answer))
    assert plan.config.section(Zero).bucket == 64
    assert answer in plan.resolved


def test_auto_without_a_resolver_names_the_one_that_is_missing() -> None:
    """B04 (a): a configuration error that says which resolver is missing, never a TypeError."""
    with pytest.raises(ConfigError, match=r"zero_optimization.bucket: found \"auto\".*dsx_resolve of plugin 'zero'"):
        plan_of(BATCH, plugins=zero())
    trainer = {**BATCH, "optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": [0.9, "auto"]}}}
    with pytest.raises(ConfigError) as caught:
        plan_of(trainer)
    assert 'optimizer.params.lr: found "auto"' in str(caught.value)
    assert 'optimizer.params.betas[1]: found "auto"' in str(caught.value)
    assert "transformers" in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([Resolved("zero_optimization.bucket", "much", "")], "which it does not take"),
        ([Resolved("zero_optimization.bucket", 1, ""), Resolved("zero_optimization.bucket", 2, "")], "one resolver"),
        ([Resolved("zero_optimization.stage", 1, "")], 'does not stand at "auto"'),
        ([Resolved("seed", 1, "")], "no key of a plugin: wanted keys of its own sections only, zero_optimization"),
        ([Resolved("nowhere.at.all", 1, "")], "no key of a plugin"),
    ],
)
def test_resolver_that_oversteps_is_named(answers: list[Resolved], words: str) -> None:
    with pytest.raises(PluginError) as caught:
        plan_of(BATCH, plugins=zero(*answers))
    assert words in str(caught.value)
    assert "'zero' (acme-zero 1.0)" in str(caught.value)


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bf16_at_auto_follows_the_processor(native: bool, dtype: torch.dtype) -> None:
    plan = plan_of({**BATCH, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, native_bf16=native)
    assert plan.precision.parameter == dtype
    assert plan.config.bf16.enabled is native
    assert plan.config.fp16.enabled is False
    assert {item.key for item in plan.resolved} == {"bf16.enabled", "fp16.enabled"}


def test_bf16_at_auto_yields_to_another_precision() -> None:
    plan = plan_of({**BATCH, "bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}, native_bf16=True)
    assert plan.precision.parameter == torch.float16


def test_clipping_at_auto_clips_nothing() -> None:
    assert plan_of({**BATCH, "gradient_clipping": "auto"}).config.gradient_clipping == 0.0


@settings(deadline=None)  # a loaded machine is no failure
@given(rank=st.integers(0, 7), local=st.integers(0, 3))
def test_digest_is_equal_on_every_rank(rank: int, local: int) -> None:
    world = World(rank=rank, size=8, local_rank=local, local_size=4)
    plan = make_plan(BATCH, world=world, plugins=manager())
    other = make_plan(BATCH, world=World(size=8), plugins=manager())
    assert plan.digest() == other.digest()
    assert plan.parts_of_digest() == other.parts_of_digest()


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ({"seed": 4}, "config seed"),
        ({"train_micro_batch_size_per_gpu": 3}, "batch"),
        ({"bf16": {"enabled": True}}, "precision"),
        ({"bf16": {"enabled": True}}, "resources"),
        ({"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}, "config optimizer"),
    ],
)
def test_digest_names_the_part_that_differs(source: dict[str, Any], part: str) -> None:
    one, two = plan_of(BATCH), plan_of({**BATCH, **source})
    assert one.digest() != two.digest()
    differing = {name for name, value in one.parts_of_digest().items() if two.parts_of_digest()[name] != value}
    assert part in differing
    assert "mesh axes" not in differing


def test_digest_of_values_that_json_does_not_know() -> None:
    def source() -> dict[str, Any]:
        params = {"dtype": torch.bfloat16, "mask": len, "betas": (0.9, 0.95), "lr": float("inf")}
        return {**BATCH, "optimizer": {"type": "x", "params": params}}

    assert plan_of(source()).digest() == plan_of(source()).digest() != plan_of(BATCH).digest()


def test_digest_tells_another_world_and_other_plugins() -> None:
    one = plan_of(BATCH)
    assert one.parts_of_digest()["world size"] != plan_of(BATCH, size=2).parts_of_digest()["world size"]
    assert one.parts_of_digest()["plugins"] != plan_of(BATCH, plugins=manager(plugin("x"))).parts_of_digest()["plugins"]


def test_passes_run_by_phase() -> None:
    def same(model: Any, plan: Any) -> Any:
        return model

    late, early = ModelPass("a", Phase.SHARD, same), ModelPass("b", Phase.REWRITE, same)
    passes = plan_of(BATCH, plugins=manager(plugin("x", dsx_passes=lambda: [late, early]))).passes
    assert [item.name for item in passes] == ["b", "a"]
    twice = manager(plugin("x", dsx_passes=lambda: [early]), plugin("y", dsx_passes=lambda: [early]))
    with pytest.raises(PlanError, match=r"'b' by 'x' \(acme-x 1.0\) and 'y' \(acme-y 1.0\)"):
        plan_of(BATCH, plugins=twice)


def test_replicas_are_the_degree_of_data() -> None:
    pipe = manager(plugin("pipe", dsx_mesh_axes=lambda: [MeshAxis("pipe", 2, why="pipeline.stages")]))
    plan = plan_of(BATCH, size=8, plugins=pipe)
    assert (plan.batch.replicas, plan.degree("pipe"), plan.degree("tensor")) == (4, 2, 1)
    assert plan_of({**BATCH, "data_parallel_size": 4}, size=8, plugins=pipe).batch.replicas == 4
    with pytest.raises(PlanError, match="data_parallel_size: found 8, wanted 4"):
        plan_of({**BATCH, "data_parallel_size": 8}, size=8, plugins=pipe)


def test_description_holds_what_a_user_asks() -> None:
    plugins = zero(
        Resolved("zero_optimization.bucket", 64, "a tenth of the model"),
        dsx_claims=lambda: [sets("grad", "sharded", why="stage=2")],
    )
    plan = plan_of({**BATCH, "bf16": {"enabled": True}}, size=2, plugins=plugins)
    text = plan.describe()
    for part in (
        "ranks: 2",
        "mesh: data 2",
        "4 samples an update = micro 2 × accumulation 1 × data replicas 2",
        plan.precision.describe(),
        "grad: sharded, set by 'zero' (stage=2)",
        "dtype: bf16, set by 'core' (bf16.enabled=true)",
        "zero_optimization.bucket = 64: a tenth of the model",
        "zero 1.0",
        plan.digest(),
    ):
        assert part in text


def test_a_plan_is_frozen() -> None:
    plan = plan_of(BATCH)
    with pytest.raises(AttributeError):
        plan.batch = replace(plan.batch, micro=1)  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.states["grad"] = "sharded"  # type: ignore[index]
