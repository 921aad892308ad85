"""Schedule conformance: a rate before the first update, finite ones after, and the same course after a reload."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dsx.optim.schedule_driver import FunctionSchedule, LRSchedule, make_schedule
from dsx.plugin.kinds import SCHEDULE
from dsx.registry.registry import Registry
from dsx.testing.subjects import Subject, subject_of
from dsx.testing.verdict import fail, hold, trying

UPDATES = 40
"""Updates over which a schedule is watched."""

RATES = (0.1, 0.02)
"""Rates with which the parameter groups are built."""

Rates = tuple[tuple[float, ...], ...]


def check_schedule(
    schedule: Any,
    *,
    params: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    plugins: Sequence[object | str] = (),
    updates: int = UPDATES,
) -> None:
    """Check a schedule: a registered name, or a class as a plugin would register it. Raises AssertionError.

    params: as in ``scheduler.params``. registry: where a name is looked up; without it, the installed plugins and
    ``plugins``. Laws: it is built by name from a configuration; every rate is finite and not negative, a momentum in
    [0, 1), from before the first update on; each parameter group is handled, by its own base rate; two courses are
    equal; a state taken at any update, through pickle, goes on with the same rates in a fresh one, also after the
    groups were overwritten; an engine shows the same rates.
    """
    with trying(f"finding the schedule {schedule!r}"):
        subject = subject_of(SCHEDULE, schedule, params=params, registry=registry, plugins=plugins)
    what = f"schedule {subject.title}"
    with trying(what):
        course = _course(_made(subject, RATES), updates)
        _check_numbers(course, what)
        _check_same(course, _course(_made(subject, RATES), updates), f"{what}: two courses")
        _check_groups(subject, course, what)
        for at in sorted({0, 1, updates // 3, updates - 1}):
            _check_resumed(subject, course, at, what)
        _check_pure(subject, course, what)
        _check_engine(subject, what)


def _optimizer(rates: Sequence[float]) -> torch.optim.Optimizer:
    """Groups as an engine's optimizer has them; with a momentum for schedules that move it."""
    groups = [{"params": [nn.Parameter(torch.zeros(3))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=rates[0], momentum=0.9)


def _made(subject: Subject, rates: Sequence[float]) -> LRSchedule:
    made = make_schedule(subject.section, optimizer=_optimizer(rates), registry=subject.registry)
    if made is None:
        fail(f"schedule {subject.title}: nothing was made of it")
    return made


def _now(made: LRSchedule) -> tuple[float, ...]:
    """Rates, then momenta, of each group for the next update."""
    rates = made.get_last_lr()
    shown = [float(group["lr"]) for group in made.optimizer.param_groups]
    hold(rates == shown, f"get_last_lr() gives {rates}, and the groups show {shown}")
    return (*rates, *(float(group["momentum"]) for group in made.optimizer.param_groups))


def _course(made: LRSchedule, updates: int) -> Rates:
    """What the groups show before each update; without a step of the optimizer, as an engine calls ``advance``."""
    seen = [_now(made)]
    for _ in range(updates):
        made.advance()
        seen.append(_now(made))
    return tuple(seen)


def _check_numbers(course: Rates, what: str) -> None:
    for index, now in enumerate(course):
        count = len(now) // 2
        for number, rate in enumerate(now[:count]):
            good = math.isfinite(rate) and rate >= 0
            hold(good, f"{what}: the rate of group {number} before update {index} is {rate}, wanted a finite one >= 0")
        for number, momentum in enumerate(now[count:]):
            hold(0 <= momentum < 1, f"{what}: the momentum of group {number} before update {index} is {momentum}")


def _check_same(one: Rates, other: Rates, what: str) -> None:
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        hold(a == b, f"{what} differ before update {index}: {a} and {b}")


def _check_groups(subject: Subject, course: Rates, what: str) -> None:
    """Each group's rates are those of an optimizer that has this group alone."""
    for number, base in enumerate(RATES):
        if any(isinstance(value, (list, tuple)) and len(value) == len(RATES) for value in subject.params.values()):
            return  # one value a group: a single group cannot be built with these params
        alone = _course(_made(subject, (base,)), len(course) - 1)
        for index, (now, single) in enumerate(zip(course, alone, strict=True)):
            found, wanted = (now[number], now[len(RATES) + number]), single
            hold(
                found == wanted,
                f"{what}: group {number} has rate and momentum {found} before update {index}, alone it has {wanted}",
            )


def _check_resumed(subject: Subject, course: Rates, at: int, what: str) -> None:
    """A state taken before update ``at`` goes on in a fresh schedule, over groups that a checkpoint overwrote."""
    made = _made(subject, RATES)
    for _ in range(at):
        made.advance()
    state = pickle.loads(pickle.dumps(made.state_dict()))
    fresh = _made(subject, RATES)
    fresh.load_state_dict(state)
    hold(_now(fresh) == course[at], f"{what}: reloaded before update {at} it shows {_now(fresh)}, wanted {course[at]}")
    for group in fresh.optimizer.param_groups:
        group["lr"] = 123.0
    fresh.refresh()
    rest = _course(fresh, len(course) - 1 - at)
    _check_same(rest, course[at:], f"{what}: reloaded before update {at} and uninterrupted, the rates")


def _check_pure(subject: Subject, course: Rates, what: str) -> None:
    """A function of the update index gives the same in any order, and far out."""
    made = _made(subject, RATES)
    if not isinstance(made, FunctionSchedule):
        return
    for index in reversed(range(len(course))):
        made.apply(index)
        hold(
            _now(made) == course[index], f"{what}: asked for update {index} at once it gives another rate than in turn"
        )
    for index in (10**4, 10**7):
        made.apply(index)
        _check_numbers((_now(made),), f"{what}, {index} updates later")


def _check_engine(subject: Subject, what: str) -> None:
    """An engine that is given the name shows the rates that the schedule gives."""
    import dsx

    with trying(f"{what}: dsx.initialize with it"):
        seen = _in_engine(subject, dsx.initialize)
    expected = _made(subject, RATES[:1])
    for index, rate in enumerate(seen):
        wanted = expected.get_last_lr()
        hold(rate == wanted, f"{what}: an engine shows {rate} before update {index}, wanted {wanted}")
        expected.advance()


def _in_engine(subject: Subject, initialize: Callable[..., Any]) -> list[list[float]]:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "torch.SGD", "params": {"lr": RATES[0], "momentum": 0.9}},
        "scheduler": {"type": subject.name, "params": dict(subject.params)},
    }
    seen = []
    with initialize(model=nn.Linear(2, 1), config=config, plugins=subject.plugins)[0] as engine:
        for _ in range(3):
            seen.append(engine.get_lr())
            engine.backward(engine(torch.ones(1, 2)).sum())
            engine.step()
    return seen
