"""``gradient_codec`` with the core alone: what it refuses, what it moves, and that ranks stay together."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dsx
from dsx.codecs.integer8 import Int8
from dsx.errors import ConfigError, PlanError, PluginError
from dsx.planning.make import make_plan
from dsx.plugin import API_VERSION, CODEC, Claim, Component, Driver, PluginSpec, World, hookimpl, sets
from dsx.testing.awkward import MICRO, Awkward, awkward_batch
from dsx.testing.parity import Course, steered

Ranks = Callable[..., list[Any]]


def config(name: str | None, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-4}},
        "gradient_codec": name,
        **more,
    }


def course(name: str | None, **more: Any) -> tuple[Course, dict[str, int]]:
    """What a training looked like, and the bytes it sent, by operation."""
    with dsx.initialize(model=Awkward(), config=config(name, **more))[0] as engine:
        engine.data_group.account.reset()
        found = steered(engine, awkward_batch, updates=3)
        return found, {op: cost.bytes for op, cost in engine.data_group.account.by_op.items()}


def both() -> tuple[Course, Course, dict[str, int], int]:
    with dsx.initialize(model=Awkward(), config=config("int8"))[0] as engine:
        elements = sum(bucket.layout.numel for bucket in engine.driver.trainable)
    coded, sent = course("int8")
    return coded, course(None)[0], sent, elements


@pytest.mark.parametrize("world", [2, 3])
def test_plain_data_parallelism_sums_encoded_gradients(world: int, ranks: Ranks) -> None:
    found = ranks(both, world=world)
    for coded, uncoded, sent, elements in found:
        part = Int8().packed_bytes(-(-elements // world))
        assert sent["all_to_all"] == sent["all_gather"] == 3 * (world - 1) * part
        assert coded.losses == pytest.approx(uncoded.losses, rel=1e-2)
        assert all(torch.equal(coded.weights[name], found[0][0].weights[name]) for name in coded.weights)


def test_one_rank_encodes_nothing() -> None:
    """Bit by bit: nothing travels, so nothing is lost."""
    assert course("int8")[0].apart(course(None)[0]) == 0.0


def test_the_plan_says_so_and_makes_nothing() -> None:
    plan = make_plan(config("int8"), world=World(size=2, local_size=2))
    assert (plan.precision.gradient_codec, plan.precision.codec) == ("int8", None)
    assert "reduce in int8 (codec)" in plan.precision.describe()
    other = make_plan(config(None), world=World(size=2, local_size=2))
    assert "reduce in fp32" in other.precision.describe()
    assert plan.digest() != other.digest()


def test_an_unknown_codec_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(PluginError, match="unknown codec 'int9'.*'int8'.*bf16, int8"):
        dsx.initialize(model=Awkward(), config=config("int9"))


def test_a_codec_and_a_number_format_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="gradient_codec and communication_data_type: found 'int8' and 'bf16'"):
        dsx.initialize(model=Awkward(), config=config("int8", communication_data_type="bf16"))


class OwnWay:
    """A driver with everything that a driver has, and no word about codecs."""

    def __getattr__(self, name: str) -> Any:
        if name in dir(Driver) or name in Driver.__annotations__:
            return lambda *_, **__: None
        raise AttributeError(name)


def own_way() -> types.ModuleType:
    """A plugin whose driver moves gradients in its own way."""
    module = types.ModuleType("fake_driver")
    spec = PluginSpec(name="own-way", api=API_VERSION, summary="made for a test")
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]

    def dsx_claims() -> Iterator[Claim]:
        yield sets("driver", "own", why="a test")

    module.dsx_claims = hookimpl(dsx_claims)  # type: ignore[attr-defined]
    module.dsx_make_driver = hookimpl(lambda: OwnWay())  # type: ignore[attr-defined]
    return module


def test_a_driver_that_takes_no_codec_is_not_passed_over_in_silence() -> None:
    with pytest.raises(PlanError, match="(?s)gradient_codec: found 'int8', but the driver of .*own-way.*takes_codec"):
        dsx.initialize(model=Awkward(), config=config("int8"), plugins=[own_way()])


class Broken:
    """A codec that cannot be made."""

    def __init__(self) -> None:
        raise OSError("no tables here")


class Lacking:
    """A codec without its second half."""

    name = "lacking"

    def packed_bytes(self, numel: int) -> int:
        return numel

    def encode(self, values: torch.Tensor, packed: torch.Tensor) -> None:
        packed.zero_()


def offers() -> types.ModuleType:
    """A plugin with codecs that are no use."""
    module = types.ModuleType("fake_codecs")
    spec = PluginSpec(name="no-use", api=API_VERSION, summary="made for a test")
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]

    def dsx_components() -> Iterator[Component[Any]]:
        yield Component(CODEC, "broken", load=lambda: Broken)
        yield Component(CODEC, "lacking", load=lambda: Lacking)

    module.dsx_components = hookimpl(dsx_components)  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken", "failed in making codec 'broken': OSError: no tables here"),
        ("lacking", "the wrong kind of answer in codec 'lacking': found Lacking without decode, wanted a Codec"),
    ],
)
def test_a_codec_that_is_no_use_is_refused_with_its_plugin(name: str, text: str) -> None:
    with pytest.raises(PluginError, match=f"plugin 'no-use'.*{text}"):
        dsx.initialize(model=Awkward(), config=config(name), plugins=[offers()])
