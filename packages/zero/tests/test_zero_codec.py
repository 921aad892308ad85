"""``gradient_codec``: gradients travel encoded in every stage, and every rank ends with the same weights."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_helpers import FP16, STAGES, adamw, config, engine_of

from dsx.plugin import API_VERSION, CODEC, Component, Family, MeshAxis, PluginSpec, hookimpl
from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import Course, plain, steered, weights_apart

Ranks = Callable[..., list[Any]]
UPDATES = 3
LOSSES: Mapping[str, float] = {"bf16": 2e-3, "int8": 1e-2}
"""How far losses may be from those of uncoded gradients."""
WIDE = 64


class Plain:
    """A stranger's codec, which loses nothing: fp32, byte by byte."""

    name = "plain"

    def packed_bytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, values: Tensor, packed: Tensor) -> None:
        packed.copy_(values.float().view(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        values.copy_(packed.clone().view(torch.float32))


def stranger() -> types.ModuleType:
    """A plugin that offers it."""
    module = types.ModuleType("fake_codecs")
    spec = PluginSpec(name="strange-codecs", api=API_VERSION, summary="made for a test")
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]

    def dsx_components() -> Iterator[Component[Any]]:
        yield Component(CODEC, "plain", load=lambda: Plain)

    module.dsx_components = hookimpl(dsx_components)  # type: ignore[attr-defined]
    return module


def coded(stage: int, name: str | None, **more: Any) -> dict[str, Any]:
    return config(stage, gradient_codec=name, **more)


# Every rank holds the same -------------------------------------------------------------------------------------------


def trained(name: str) -> list[tuple[Course, Course, bool]]:
    """By stage: the course, that of uncoded gradients, and whether all ranks hold the same bits."""
    found = []
    for stage, accumulation in zip(STAGES, (1, 2, 2, 1), strict=True):
        courses, same = [], True
        for codec in (name, None):
            with engine_of(Awkward(), coded(stage, codec, gradient_accumulation_steps=accumulation)) as engine:
                courses.append(steered(engine, awkward_batch, updates=UPDATES))
                with engine.gathered():
                    bits = [param.detach().clone() for param in engine.module.parameters()]
                everyone = engine.data_group.exchange_objects(bits, site="weights of a test")
                same = same and all(map(torch.equal, itertools.chain(*everyone), bits * len(everyone)))
        found.append((courses[0], courses[1], same))
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_every_rank_holds_the_same_and_learns_as_well(name: str, world: int, ranks: Ranks) -> None:
    for stages in ranks(trained, name, world=world):
        for course, uncoded, same in stages:
            assert same
            assert course.losses == pytest.approx(uncoded.losses, rel=LOSSES[name])
            assert course.norms == pytest.approx(uncoded.norms, rel=2e-2)
            assert 0 < weights_apart(course.weights, uncoded.weights) < 2e-2


# What moves ----------------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Matrices whose parts fill whole blocks on 2 and 4 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.pow(2).mean()


def sent(stage: int, name: str | None) -> dict[str, int]:
    """Bytes that this rank sent in one update, by operation."""
    zero = {"reduce_bucket_size": 10**6, "stage3_param_persistence_threshold": 0}
    with engine_of(Wide(), coded(stage, name, zero=zero)) as engine:
        engine.data_group.account.reset()
        engine.backward(engine(torch.randn(4, WIDE)))
        engine.step()
        return {op: cost.bytes for op, cost in engine.data_group.account.by_op.items()}


def all_sent() -> dict[tuple[int, str | None], dict[str, int]]:
    return {(stage, name): sent(stage, name) for stage in STAGES for name in (None, "bf16", "int8")}


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_on_the_wire_are_the_codecs(world: int, ranks: Ranks) -> None:
    """A rank sends (N-1)/N of the packed gradients; in stage 0 twice, as it sends sums as well."""
    whole = 4 * 4 * WIDE * WIDE * (world - 1) // world
    for found in ranks(all_sent, world=world):
        for stage in STAGES:
            before = found[stage, None]
            assert "all_to_all" not in before
            assert before["reduce_scatter" if stage else "all_reduce"] == whole * (1 if stage else 2)
            for name, share in (("bf16", 1 / 2), ("int8", (1 + 4 / 256) / 4)):
                now = found[stage, name]
                assert now["all_to_all"] == whole * share
                assert now.get("all_gather", 0) == (before["all_gather"] if stage else whole * share)
                assert not {"reduce_scatter", "all_reduce"} & now.keys()


# A codec that loses nothing ------------------------------------------------------------------------------------------


def lossless(world: int) -> dict[str, float]:
    """How far from plain PyTorch, and from uncoded gradients, a lossless codec of a stranger is."""
    gaps = {}
    for stage, (accumulation, by_loss, clip) in itertools.product(STAGES, ((1, True, 0.0), (3, False, 0.7))):
        courses = []
        for name in ("plain", None):
            settings = coded(stage, name, gradient_accumulation_steps=accumulation, gradient_clipping=clip)
            with engine_of(Awkward(), settings, plugins=[stranger()]) as engine:
                courses.append(steered(engine, awkward_batch, updates=UPDATES, plain_backward=by_loss))
        model = Awkward()
        optimizer = adamw(model.parameters())
        reference = plain(
            model,
            awkward_batch,
            optimizer=optimizer,
            updates=UPDATES,
            world=world,
            accumulation=accumulation,
            clip=clip,
        )
        gaps[f"{stage=} {accumulation=} from torch"] = courses[0].apart(reference)
        gaps[f"{stage=} {accumulation=} from uncoded"] = courses[0].apart(courses[1])
    return gaps


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_strangers_lossless_codec_keeps_the_law(world: int, ranks: Ranks) -> None:
    for gaps in ranks(lossless, world, world=world):
        assert {case: gap for case, gap in gaps.items() if not gap <= 1e-6} == {}


def uneven() -> dict[int, float]:
    """By stage: the distance that a codec makes where rank 0 alone goes backward a second time before the step."""
    gaps = {}
    for stage in (0, 1, 2):  # under stage 3 every rank runs the same modules
        courses = []
        for name in ("plain", None):
            with engine_of(Awkward(), coded(stage, name, comm_timeout=20.0), plugins=[stranger()]) as engine:
                for update in range(2):
                    engine.backward(engine(*awkward_batch(update, 0, engine.data_group.rank)))
                    if engine.data_group.rank == 0:
                        engine(*awkward_batch(update, 1, 0)).backward()
                    engine.step()
                courses.append(engine.full_state_dict())
        gaps[stage] = weights_apart(*courses)
    return gaps


@pytest.mark.parametrize("world", [2, 3])
def test_what_one_rank_adds_while_a_coded_reduction_runs_is_reduced_too(world: int, ranks: Ranks) -> None:
    for gaps in ranks(uneven, world=world):
        assert {stage: gap for stage, gap in gaps.items() if not gap <= 1e-6} == {}


# Number formats ------------------------------------------------------------------------------------------------------


def overflowing(name: str) -> list[tuple[int, bool, str]]:
    """By stage: updates skipped for a gradient that is inf on rank 1 alone, whether weights are as before, and who."""
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), coded(stage, name, fp16=dict(FP16))) as engine:
            before = engine.full_state_dict()
            inputs, targets = awkward_batch(0, 0, engine.data_group.rank)
            loss = engine(inputs, targets)
            if engine.data_group.rank == 1:
                loss = loss + engine.module.leave.bias[0] * torch.inf
            engine.backward(loss)
            engine.driver.reduce()
            named = engine.driver.norm().bad or ""
            engine.step()
            found.append((engine.skipped_steps, weights_apart(before, engine.full_state_dict()) == 0, named))
    return found


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_an_overflow_on_one_rank_is_seen_through_the_codec_and_named(name: str, ranks: Ranks) -> None:
    for stages in ranks(overflowing, name):
        assert stages == [(1, True, "leave.bias")] * len(STAGES)


def kept() -> list[tuple[int, int]]:
    """By stage: bytes sent as numbers and encoded, of a bf16 model whose last layer stays in fp32."""
    rows = []
    for stage in STAGES:
        settings = coded(stage, "int8", bf16={"enabled": True}, data_types={"keep_in_fp32_modules": ["leave"]})
        with engine_of(Awkward(), settings) as engine:
            assert "int8 (codec)" in engine.plan.precision.describe()
            engine.data_group.account.reset()
            engine.backward(engine(*awkward_batch(0, 0, engine.data_group.rank)))
            engine.step()
            by_op = engine.data_group.account.by_op
            rows.append((by_op["reduce_scatter" if stage else "all_reduce"].bytes, by_op["all_to_all"].bytes))
    return rows


def test_gradients_of_modules_kept_in_fp32_travel_uncoded(ranks: Ranks) -> None:
    for rows in ranks(kept):
        for stage, (numbers, encoded) in enumerate(rows):
            assert numbers == 4 * (20 if stage == 0 else 12)  # 14 weights and 2 biases, each from a 16-byte address
            assert encoded > 100


# Shards and replicas -------------------------------------------------------------------------------------------------


def two_axes() -> types.ModuleType:
    """Gradients are summed over two axes, states are cut over one of them."""
    module = types.ModuleType("fake_axes")
    spec = PluginSpec(name="two-axes", api=API_VERSION, summary="made for a test")
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]
    module.dsx_mesh_axes = hookimpl(lambda: [MeshAxis("sequence", 2)])  # type: ignore[attr-defined]

    def dsx_param_families() -> Iterator[Family]:
        yield Family("both", lambda name, param: True, reduce_over=("data", "sequence"), shard_over=("data",))

    module.dsx_param_families = hookimpl(dsx_param_families)  # type: ignore[attr-defined]
    return module


def over_two_axes() -> list[tuple[float, float, bool]]:
    """By stage: how far a lossless codec and int8 are from uncoded gradients; whether all ranks hold the same bits."""
    found = []
    for stage in STAGES:
        weights, same = [], True
        for name in (None, "plain", "int8"):
            settings = coded(stage, name, gradient_accumulation_steps=2)
            with engine_of(Awkward(), settings, plugins=[stranger(), two_axes()]) as engine:
                for update, turn in itertools.product(range(2), range(2)):
                    engine.backward(engine(*awkward_batch(update, turn, engine.plan.world.rank)))
                    engine.step()
                if name:
                    sizes = {(b.shard_group.size, b.replica_group.size) for b in engine.driver.trainable}
                    assert sizes == ({(1, 4)} if stage == 0 else {(2, 2)})
                with engine.gathered():
                    bits = [param.detach().clone() for param in engine.module.parameters()]
                everyone = engine.mesh.world_group.exchange_objects(bits, site="weights of a test")
                same = same and all(map(torch.equal, itertools.chain(*everyone), bits * len(everyone)))
                weights.append(engine.full_state_dict())
        found.append((weights_apart(weights[1], weights[0]), weights_apart(weights[2], weights[0]), same))
    return found


def uneven_over_two_axes() -> dict[int, float]:
    """As `uneven`, where what was reduced over the shards is still to be reduced over their replicas.

    Every parameter gets a gradient, so that all buckets are under way when rank 0 goes backward again.
    """
    gaps = {}
    for stage in (0, 1, 2):
        courses = []
        for name in ("plain", None):
            torch.manual_seed(0)
            model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))
            settings = coded(stage, name, comm_timeout=20.0)
            with engine_of(model, settings, plugins=[stranger(), two_axes()]) as engine:
                rank = engine.plan.world.rank
                for _ in range(2):
                    engine.backward(engine(torch.full((3, 6), rank + 1.0)).sum())
                    if rank == 0:
                        engine(torch.ones(3, 6)).sum().backward()
                    engine.step()
                courses.append(engine.full_state_dict())
        gaps[stage] = weights_apart(*courses)
    return gaps


def test_what_one_rank_adds_waits_for_its_replicas(ranks: Ranks) -> None:
    for gaps in ranks(uneven_over_two_axes, world=4):
        assert {stage: gap for stage, gap in gaps.items() if not gap <= 1e-6} == {}


def test_shards_with_replicas_travel_encoded_over_both_axes(ranks: Ranks) -> None:
    for stages in ranks(over_two_axes, world=4):
        for lossless_gap, int8_gap, same in stages:
            assert same
            assert lossless_gap <= 1e-6
            assert 0 < int8_gap < 2e-2
