"""steps_per_print, timers.throughput, wall_clock_breakdown, memory_breakdown: what rank 0 prints of its updates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observe_helpers import MICRO, engine_of, train

from dsx.engine.losses import RunningLoss
from dsx.observe import clock, progress
from dsx.observe.clock import ClockObserver

Capture = pytest.CaptureFixture[str]


def lines(capsys: Capture, beginning: str = "step ") -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(beginning)]


class Ticks:
    """A clock that goes on by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def waiting(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    waits: list[int] = []
    monkeypatch.setattr(engine.accelerator, "synchronize", lambda: waits.append(engine.global_steps))
    return waits


def test_a_line_every_so_many_updates(capsys: Capture) -> None:
    with engine_of(steps_per_print=2) as engine:
        losses = train(engine, micro_batches=5)
        norm = engine.get_global_grad_norm()
    found = lines(capsys)
    assert [line.split(" | ")[0] for line in found] == ["step 2", "step 4"]
    parts = found[1].split(" | ")
    assert parts[1:3] == [f"loss {losses[3]:.4f}", "lr 1.000e-01"]
    assert parts[3] != f"grad norm {norm:.4f}"
    assert re.fullmatch(r"grad norm \d+\.\d{4}", parts[3])
    assert re.fullmatch(r"\d+\.\d samples/s", parts[4])
    assert parts[5] == "skipped 0"


@pytest.mark.parametrize("steps", [None, float("inf")])
def test_nothing_is_printed_unasked(capsys: Capture, steps: float | None) -> None:
    with engine_of(**({} if steps is None else {"steps_per_print": steps})) as engine:
        train(engine, micro_batches=3)
        assert engine.observers == ()
    assert lines(capsys) == []


def test_loss_scale_and_skipped_updates_are_shown(capsys: Capture) -> None:
    with engine_of(steps_per_print=1, fp16={"enabled": True, "initial_scale_power": 4}) as engine:
        engine.backward(engine(torch.ones(MICRO, 4)).sum() * float("inf"))
        engine.step()
    (line,) = lines(capsys)
    assert " | loss scale 16 | " in line  # hysteresis 2: the first overflow is let pass
    assert line.endswith(" | skipped 1")


def test_the_rate_is_the_one_that_the_update_used(capsys: Capture) -> None:
    warmup = {"warmup_min_lr": 0.25, "warmup_max_lr": 1.0, "warmup_num_steps": 3, "warmup_type": "linear"}
    with engine_of(steps_per_print=1, scheduler={"type": "WarmupLR", "params": warmup}) as engine:
        used = []
        for _ in range(3):
            used.append(engine.get_lr()[0])
            train(engine)
    assert [line.split(" | ")[2] for line in lines(capsys)] == [f"lr {rate:.3e}" for rate in used]
    assert len(set(used)) == 3


@pytest.mark.parametrize("accumulation", [1, 3])
def test_samples_per_second_count_all_micro_batches(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    monkeypatch.setattr(progress, "perf_counter", Ticks())
    with engine_of(steps_per_print=2, gradient_accumulation_steps=accumulation) as engine:
        waits = waiting(engine, monkeypatch)
        train(engine, micro_batches=4 * accumulation)
        assert waits == [2, 4]
    # Each window reads the clock twice, so it lasts one second.
    assert [line.split(" | ")[4] for line in lines(capsys)] == [f"{2 * accumulation * MICRO:.1f} samples/s"] * 2


@pytest.mark.parametrize(
    ("throughput", "shown", "waits"),
    [({"enabled": False}, False, []), ({"synchronized": False}, True, []), ({}, True, [1])],
)
def test_throughput_timer_obeys_its_section(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, throughput: dict[str, bool], shown: bool, waits: list[int]
) -> None:
    with engine_of(steps_per_print=1, timers={"throughput": throughput}) as engine:
        waited = waiting(engine, monkeypatch)
        train(engine)
        assert waited == waits
    (line,) = lines(capsys)
    assert ("samples/s" in line) is shown


def test_breakdown_of_time_by_phase(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "perf_counter", Ticks())
    with engine_of(steps_per_print=2, wall_clock_breakdown=True, gradient_accumulation_steps=3) as engine:
        waits = waiting(engine, monkeypatch)
        with torch.no_grad():
            engine(torch.ones(MICRO, 4))  # an evaluation is no part of an update
        train(engine, micro_batches=6)
        assert len(waits) == 2 * 2 * (3 + 3 + 1) + 1  # and the throughput's own
        assert ClockObserver in {type(observer) for observer in engine.observers}
    found = [line for line in lines(capsys) if "time" in line]
    assert found == ["step 2 | time an update | forward 3000.00 ms | backward 3000.00 ms | step 1000.00 ms"]


@pytest.mark.parametrize("key", ["wall_clock_breakdown", "memory_breakdown"])
def test_breakdowns_print_at_every_update_where_no_interval_is_given(capsys: Capture, key: str) -> None:
    with engine_of(**{key: True}) as engine:
        train(engine, micro_batches=3)
    assert [line.split(" | ")[0] for line in lines(capsys)] == ["step 1", "step 2", "step 3"]


def test_a_backward_that_the_engine_does_not_see_is_not_shown(capsys: Capture) -> None:
    with engine_of(wall_clock_breakdown=True, steps_per_print=1) as engine:
        engine(torch.ones(MICRO, 4)).sum().backward()
        engine.step()
        assert engine.last_loss is None
    progressed, timed = lines(capsys)
    assert "loss" not in progressed
    assert "forward" in timed
    assert "backward" not in timed


def test_breakdown_of_memory(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(memory_breakdown=True) as engine:
        in_use = iter(range(2**30, 7 * 2**30, 2**30))
        monkeypatch.setattr(engine.accelerator, "memory_allocated", lambda: next(in_use))
        train(engine)
    (line,) = lines(capsys)
    expected = (
        "step 1 | memory on cpu | forward 1.000 → 2.000 GiB | backward 3.000 → 4.000 GiB | step 5.000 → 6.000 GiB"
    )
    assert line.startswith(expected)
    assert re.search(r" \| process \d+\.\d{3} GiB$", line)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_last_loss_is_the_mean_over_the_update(accumulation: int) -> None:
    with engine_of(gradient_accumulation_steps=accumulation) as engine:
        assert engine.last_loss is None
        for _ in range(2):
            losses = train(engine, micro_batches=accumulation)
            assert engine.last_loss is not None
            assert engine.last_loss.item() == pytest.approx(sum(losses) / accumulation, rel=1e-6)


def test_gradients_that_are_dropped_take_their_losses_along() -> None:
    with engine_of() as engine:
        engine.backward(engine(torch.full((MICRO, 4), 100.0)).square().mean())
        engine.zero_grad()
        (loss,) = train(engine)
        assert engine.last_loss is not None
        assert engine.last_loss.item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_running_loss_copies_what_it_is_given(shape: tuple[int, ...]) -> None:
    running = RunningLoss(2)
    memory = torch.full(shape, 3.0)
    for value in (3.0, 5.0):
        running.add(memory.fill_(value))
    memory.fill_(100.0)
    running.add(torch.ones(2))  # no scalar: a backward with its own gradient
    running.end_update()
    assert running.last is not None
    assert running.last.tolist() == 4.0
    running.end_update()
    assert running.last is None


def test_half_precision_losses_are_summed_in_fp32() -> None:
    running = RunningLoss(256)
    for value in [256.0, *[1.0] * 255]:
        running.add(torch.tensor(value, dtype=torch.bfloat16))
    running.end_update()
    assert running.last is not None
    assert running.last.item() == 511 / 256


def test_an_observer_that_comes_late_prints_nothing_false() -> None:
    seen: Callable[[Any], None] = ClockObserver(1).after_backward
    with engine_of() as engine:
        seen(engine)
        observer = ClockObserver(1)
        observer.after_step(engine, updated=True)
        assert observer.last == {}
