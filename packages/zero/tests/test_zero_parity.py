"""Losses, norms and weights equal plain PyTorch's on one process, in every stage, at any number of ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from zero_helpers import BF16, FP16, STAGES, adamw, config, engine_of, two_groups

from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import Course, plain, steered, weights_apart

RANKS = pytest.mark.parametrize("world", [1, 2, 3])
UPDATES = 3
CASES = ((1, False, 0.0, True), (3, False, 0.7, False), (1, True, 0.7, False), (3, True, 0.0, True))
"""(accumulation, two groups, clipping, plain backward): every pair of settings occurs."""


def call(world: int, ranks: Callable[..., list[Any]], function: Callable[..., Any], *args: Any) -> list[Any]:
    """Results by rank; one rank runs right here, without a process group."""
    return [function(*args)] if world == 1 else ranks(function, *args, world=world)


def expected(*, groups: bool, world: int, **more: Any) -> Course:
    model = Awkward()
    params = two_groups(model) if groups else model.parameters()
    return plain(model, awkward_batch, optimizer=adamw(params), updates=UPDATES, world=world, **more)


def fp32_gaps(world: int) -> dict[str, float]:
    """How far each case is from plain PyTorch."""
    gaps = {}
    for accumulation, groups, clip, by_loss in CASES:
        reference = expected(groups=groups, world=world, accumulation=accumulation, clip=clip)
        for stage in STAGES:
            model = Awkward()
            settings = config(stage, gradient_accumulation_steps=accumulation, gradient_clipping=clip)
            params = two_groups(model) if groups else None
            with engine_of(model, settings, model_parameters=params) as engine:
                course = steered(engine, awkward_batch, updates=UPDATES, plain_backward=by_loss)
            gaps[f"{stage=} {accumulation=} {groups=} {clip=} {by_loss=}"] = course.apart(reference)
    return gaps


@RANKS
def test_fp32_equals_plain_torch(world: int, ranks: Callable[..., list[Any]]) -> None:
    for gaps in call(world, ranks, fp32_gaps, world):
        assert {case: gap for case, gap in gaps.items() if not gap <= 1e-6} == {}


def other_shapes(world: int) -> dict[str, float]:
    """Settings that move other buckets at other times, and must not move a number."""
    shapes: dict[str, dict[str, Any]] = {
        "defaults": {},
        "one bucket": {"stage3_param_persistence_threshold": 0},
        "a bucket a parameter": {
            "reduce_bucket_size": 1,
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 0,
        },
        "some persist": {"stage3_param_persistence_threshold": 30},
        "no overlap": {"overlap_comm": False, "stage3_param_persistence_threshold": 0},
        "one at a time": {"stage3_param_persistence_threshold": 0, "stage3_allgather_sequential": True},
        "little live": {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 60},
        "no reuse": {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0},
        "all reuse": {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 10**9},
        "leaf": {"stage3_param_persistence_threshold": 0, "leaf_module": {"classes": ["Block"]}},
        "coarse": {"stage3_param_persistence_threshold": 0, "stage3_module_granularity_threshold": 10**6},
    }
    reference = expected(groups=False, world=world, accumulation=2)
    gaps = {}
    for (name, zero), stage in itertools.product(shapes.items(), (1, 2, 3)):
        if stage < 3 and name not in ("defaults", "a bucket a parameter", "no overlap"):
            continue
        with engine_of(Awkward(), config(stage, zero=zero, gradient_accumulation_steps=2)) as engine:
            gaps[f"{name} {stage=}"] = steered(engine, awkward_batch, updates=UPDATES).apart(reference)
    return gaps


def test_no_setting_of_buckets_and_gathering_moves_a_number(ranks: Callable[..., list[Any]]) -> None:
    for gaps in ranks(other_shapes, 2):
        assert {case: gap for case, gap in gaps.items() if not gap <= 1e-6} == {}


def low_courses(world: int, accumulation: int, precision: str) -> tuple[list[Course], Course]:
    """A course a stage, and the reference."""
    section = {precision: dict(BF16 if precision == "bf16" else FP16)}
    courses = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=accumulation, **section)) as engine:
            courses.append(steered(engine, awkward_batch, updates=UPDATES, plain_backward=stage in (1, 3)))
    dtype, scale = (torch.bfloat16, 1.0) if precision == "bf16" else (torch.float16, 256.0)
    return courses, expected(groups=False, world=world, accumulation=accumulation, dtype=dtype, scale=scale)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(("world", "accumulation"), [(1, 3), (2, 1), (3, 2)])
def test_low_precision_is_the_same_in_every_stage(
    world: int, accumulation: int, precision: str, ranks: Callable[..., list[Any]]
) -> None:
    """Bit for bit where every stage adds up in one order; else as close as fp32 sums are. One rounding of the weights
    to 8 (bf16) or 11 bits that tips the other way is the distance to plain PyTorch."""
    for courses, reference in call(world, ranks, low_courses, world, accumulation, precision):
        near = 0.0 if world == 1 or (world, accumulation) == (2, 1) else {"bf16": 2e-3, "fp16": 2e-4}[precision]
        for course in courses[1:]:
            assert weights_apart(course.weights, courses[0].weights) <= near
            assert course.losses == pytest.approx(courses[0].losses, abs=near)
            assert course.norms == pytest.approx(courses[0].norms, rel=max(1e-6, near))
        assert courses[0].apart(reference) <= {"bf16": 4e-3, "fp16": 4e-4}[precision]


def drift(precision: str) -> list[Course]:
    courses = []
    section = {"bf16": dict(BF16)} if precision == "bf16" else {}
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=3, **section)) as engine:
            courses.append(steered(engine, awkward_batch, updates=5))
    return courses


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-6), ("bf16", 2e-2)])
def test_stages_do_not_drift_apart_under_accumulation(
    precision: str, near: float, ranks: Callable[..., list[Any]]
) -> None:
    """B26: the gradient norm and the weights of five updates with accumulation are the same in all stages."""
    for courses in ranks(drift, precision):
        for course in courses[1:]:
            assert course.norms == pytest.approx(courses[0].norms, rel=near)
            assert weights_apart(course.weights, courses[0].weights) <= near
        assert all(math.isfinite(norm) and norm > 0 for norm in courses[0].norms)


def reductions(world: int) -> dict[str, float]:
    """Means and sums, divided before, between or after."""
    gaps = {}
    for more in (
        {"prescale_gradients": True},
        {"gradient_predivide_factor": 2.0},
        {"prescale_gradients": True, "gradient_predivide_factor": 2.0},
        {"gradient_allreduce_op": "sum"},
        {"gradient_allreduce_op": "sum", "prescale_gradients": True},
    ):
        divisor = 2 if more.get("gradient_allreduce_op") == "sum" else None
        reference = expected(groups=False, world=world, accumulation=2, divisor=divisor)
        for stage in STAGES:
            with engine_of(Awkward(), config(stage, gradient_accumulation_steps=2, **more)) as engine:
                gaps[f"{stage=} {more}"] = steered(engine, awkward_batch, updates=UPDATES).apart(reference)
    return gaps


def test_where_gradients_are_divided_moves_no_number(ranks: Callable[..., list[Any]]) -> None:
    for gaps in ranks(reductions, 2):
        assert {case: gap for case, gap in gaps.items() if not gap <= 2e-6} == {}


def on_the_wire() -> list[tuple[Course, Course, int, int]]:
    """(course with bf16 on the wire, course with fp32, bytes that the reductions of each sent) by stage."""
    found: list[Any] = []
    for stage in STAGES:
        courses, sent = [], []
        for kind in ("bf16", None):
            with engine_of(Awkward(), config(stage, communication_data_type=kind)) as engine:
                courses.append(steered(engine, awkward_batch, updates=1))
                account = engine.mesh.group("data").account.by_op
                sent.append(account["all_reduce" if stage == 0 else "reduce_scatter"].bytes)
        found.append((*courses, *sent))
    return found


def test_communication_data_type_halves_the_bytes_and_keeps_the_sum(ranks: Callable[..., list[Any]]) -> None:
    for stages in ranks(on_the_wire):
        for low, full, sent, sent_full in stages:
            assert sent < 0.6 * sent_full  # losses and norms travel in fp32
            assert 0 < abs(low.norms[0] - full.norms[0]) / full.norms[0] < 1e-2
            assert weights_apart(low.weights, full.weights) < 2e-3
