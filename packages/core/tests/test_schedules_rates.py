"""Schedules as functions: DeepSpeed's formulas, and the laws that hold for all values."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import ConfigError
from dsx.optim.schedules import LRRangeTest, OneCycle, Schedule, WarmupCosineLR, WarmupDecayLR, WarmupLR

rates = st.floats(0, 10, allow_nan=False)
steps = st.integers(0, 50)
kinds = st.sampled_from(["log", "linear"])


def warmups(total: int = 60) -> list[Callable[..., Schedule]]:
    return [
        lambda **k: WarmupLR(**k),
        lambda **k: WarmupDecayLR(total_num_steps=total, **k),
        lambda **k: WarmupCosineLR(
            total_num_steps=total, **{n: v for n, v in k.items() if n.startswith("warmup_num") or n.endswith("type")}
        ),
    ]


def test_b07_linear_from_nothing() -> None:
    """B07: index 0 is the first update and gives 0, index 1 a tenth of the way; never the base rate."""
    schedule = WarmupLR(warmup_min_lr=0.0, warmup_max_lr=0.1, warmup_num_steps=10, warmup_type="linear")
    assert [schedule.rate(i, 1.0) for i in (0, 1, 5, 10, 99)] == pytest.approx([0.0, 0.01, 0.05, 0.1, 0.1])


def test_logarithmic_warmup() -> None:
    schedule = WarmupLR(warmup_min_lr=0.1, warmup_num_steps=10)
    for i in range(10):
        assert schedule.rate(i, 1.1) == pytest.approx(0.1 + math.log(i + 1) / math.log(10))
    assert schedule.rate(10, 1.1) == 1.1
    assert WarmupLR(warmup_num_steps=1).rate(0, 1.0) == 0.0
    assert WarmupLR(warmup_num_steps=1).rate(1, 1.0) == 1.0


@pytest.mark.parametrize("kind", ["log", "linear"])
@pytest.mark.parametrize("make", warmups())
def test_no_warmup_steps_means_full_rate_at_once(make: Callable[..., Schedule], kind: str) -> None:
    """B10: ``warmup_num_steps: 0`` is accepted, and update 0 runs at the full rate."""
    schedule = make(warmup_num_steps=0, warmup_type=kind)
    full = 0.001 if isinstance(schedule, WarmupDecayLR) else 0.7
    assert schedule.rate(0, 0.7) == pytest.approx(full)


def test_decay_falls_in_a_line_to_the_minimum() -> None:
    schedule = WarmupDecayLR(total_num_steps=30, warmup_min_lr=0.1, warmup_max_lr=1.1, warmup_num_steps=10)
    assert [schedule.rate(i, 9.0) for i in (10, 15, 20, 30, 31, 99)] == pytest.approx([1.1, 0.85, 0.6, 0.1, 0.1, 0.1])


def test_cosine_is_deepspeeds() -> None:
    schedule = WarmupCosineLR(
        total_num_steps=30, warmup_num_steps=10, warmup_min_ratio=0.2, cos_min_ratio=0.1, warmup_type="linear"
    )
    assert schedule.rate(0, 2.0) == pytest.approx(0.4)
    assert schedule.rate(5, 2.0) == pytest.approx(2 * (0.2 + 0.8 * 0.5))
    for i in range(10, 30):
        wave = (1 + math.cos(math.pi * (i - 10 + 1) / 20)) / 2
        assert schedule.rate(i, 2.0) == pytest.approx(2 * (0.1 + 0.9 * wave))
    assert schedule.rate(29, 2.0) == schedule.rate(500, 2.0) == pytest.approx(0.2), "it stays at the minimum"


def test_one_cycle() -> None:
    schedule = OneCycle(
        cycle_min_lr=0.1,
        cycle_max_lr=1.1,
        cycle_first_step_size=10,
        cycle_second_step_size=20,
        decay_step_size=5,
        decay_lr_rate=1.0,
        decay_mom_rate=0.02,
    )
    found = [schedule.rate(i, 9.0) for i in (0, 5, 10, 20, 30, 35, 40)]
    assert found == pytest.approx([0.1, 0.6, 1.1, 0.6, 0.1, 0.05, 0.1 / 3])
    found = [schedule.momentum(i) or 0.0 for i in (0, 5, 10, 20, 30, 35)]
    assert found == pytest.approx([0.9, 0.85, 0.8, 0.85, 0.9, 0.918])
    assert OneCycle(cycle_min_lr=0.1, cycle_max_lr=1.1, cycle_momentum=False).momentum(5) is None


def test_one_cycle_without_decay_stays_at_the_minimum() -> None:
    schedule = OneCycle(cycle_min_lr=0.1, cycle_max_lr=1.1, cycle_first_step_size=10, decay_lr_rate=0.5)
    assert schedule.rate(20, 9.0) == schedule.rate(1000, 9.0) == pytest.approx(0.1)
    assert schedule.momentum(1000) == pytest.approx(0.9)


def test_one_cycle_in_stairs() -> None:
    schedule = OneCycle(cycle_min_lr=0.0, cycle_max_lr=1.0, cycle_first_step_size=10, cycle_first_stair_count=2)
    found = [schedule.rate(i, 9.0) for i in (0, 4, 5, 9, 10, 14, 15, 19, 20)]
    assert found == pytest.approx([0, 0, 0.5, 0.5, 1, 1, 0.5, 0.5, 0])


def test_range_test() -> None:
    smooth = LRRangeTest(lr_range_test_min_lr=0.1, lr_range_test_step_size=10, lr_range_test_step_rate=2.0)
    stairs = LRRangeTest(
        lr_range_test_min_lr=0.1, lr_range_test_step_size=10, lr_range_test_step_rate=2.0, lr_range_test_staircase=True
    )
    assert [smooth.rate(i, 9.0) for i in (0, 5, 10)] == pytest.approx([0.1, 0.2, 0.3])
    assert [stairs.rate(i, 9.0) for i in (0, 9, 10, 25)] == pytest.approx([0.1, 0.1, 0.3, 0.5])


def test_one_value_for_each_group() -> None:
    schedule = WarmupLR(warmup_max_lr=[0.1, 0.2], warmup_num_steps=0)  # type: ignore[arg-type]
    assert [schedule.rate(0, 9.0, group=g) for g in (0, 1)] == [0.1, 0.2]
    schedule.check_groups(2)
    with pytest.raises(ConfigError, match="warmup_max_lr has 2 values, but there are 3 parameter groups"):
        schedule.check_groups(3)


@given(low=rates, high=rates, count=steps, kind=kinds, base=rates)
def test_warmup_is_monotone_and_between_its_ends(low: float, high: float, count: int, kind: str, base: float) -> None:
    schedule = WarmupLR(warmup_min_lr=low, warmup_max_lr=high, warmup_num_steps=count, warmup_type=kind)
    found = [schedule.rate(i, base) for i in range(count + 3)]
    sign = 1 if high >= low else -1
    assert all(sign * (b - a) >= -1e-9 for a, b in pairwise(found))
    assert all(min(low, high) - 1e-9 <= rate <= max(low, high) + 1e-9 for rate in found)
    assert found[-1] == pytest.approx(high)
    assert WarmupLR(warmup_min_lr=low, warmup_num_steps=count, warmup_type=kind).rate(count + 2, base) == pytest.approx(
        base
    )


@given(count=steps, total=st.integers(1, 60), kind=kinds, index=st.integers(0, 200))
def test_no_rate_is_negative_or_above_the_top(count: int, total: int, kind: str, index: int) -> None:
    for make in warmups(total):
        schedule = make(warmup_num_steps=count, warmup_type=kind)
        top = 0.001 if isinstance(schedule, WarmupDecayLR) else 0.7
        assert 0 <= schedule.rate(index, 0.7) <= top + 1e-12


@given(first=st.integers(1, 30), second=st.integers(1, 30), decay=st.integers(0, 20), decay_rate=st.floats(0, 3))
def test_one_cycle_has_no_jumps(first: int, second: int, decay: int, decay_rate: float) -> None:
    schedule = OneCycle(
        cycle_min_lr=0.1,
        cycle_max_lr=1.1,
        cycle_first_step_size=first,
        cycle_second_step_size=second,
        decay_step_size=decay,
        decay_lr_rate=decay_rate,
    )
    found = [schedule.rate(i, 9.0) for i in range(first + second + 30)]
    largest = max(1 / first, 1 / second, 0.1 * decay_rate / max(1, decay))
    assert all(abs(b - a) <= largest + 1e-9 for a, b in pairwise(found))
    assert all(rate > 0 for rate in found)
    assert max(found) == pytest.approx(1.1)
    moms = [schedule.momentum(i) or -1.0 for i in range(first + second + 30)]
    assert all(0.8 - 1e-9 <= m < 1 for m in moms)


@given(total=st.integers(3, 100), count=steps)
def test_decays_end_at_the_minimum(total: int, count: int) -> None:
    end = max(total, count, 2) + 1
    assert WarmupDecayLR(total_num_steps=total, warmup_min_lr=0.0, warmup_num_steps=count).rate(end, 9.0) == 0.0
    cosine = WarmupCosineLR(total_num_steps=total, warmup_num_steps=count, cos_min_ratio=0.25)
    assert cosine.rate(end, 2.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (WarmupLR, {"warmup_num_steps": -1}, "warmup_num_steps is -1 in WarmupLR, wanted at least 0"),
        (WarmupLR, {"warmup_type": "exp"}, "'exp', wanted 'log' or 'linear'"),
        (WarmupLR, {"warmup_max_lr": -0.1}, "warmup_max_lr is -0.1"),
        (WarmupLR, {"warmup_max_lr": [0.1, float("nan")]}, "nan, wanted a finite number"),
        (WarmupLR, {"warmup_min_lr": "0.1"}, "'0.1', wanted a finite number"),
        (WarmupDecayLR, {"total_num_steps": 0}, "total_num_steps is 0 in WarmupDecayLR"),
        (WarmupCosineLR, {"total_num_steps": -5}, "total_num_steps is -5 in WarmupCosineLR"),
        (
            OneCycle,
            {"cycle_min_lr": 0.1, "cycle_max_lr": 1.0, "cycle_first_step_size": 0},
            "cycle_first_step_size is 0",
        ),
        (OneCycle, {"cycle_min_lr": -0.1, "cycle_max_lr": 1.0}, "cycle_min_lr is -0.1"),
        (OneCycle, {"cycle_min_lr": 0.1, "cycle_max_lr": 1.0, "cycle_max_mom": 1.0}, "wanted 0 <= min <= max < 1"),
        (LRRangeTest, {"lr_range_test_step_size": 0}, "lr_range_test_step_size is 0"),
    ],
)
def test_values_that_make_no_schedule(make: Callable[..., Schedule], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**values)
