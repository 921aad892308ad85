"""Rates in an optimizer's groups: before update 0, after skips, through a checkpoint, whoever owns the schedule."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim_helpers import OwnComponents, Section
from torch import nn
from torch.optim import lr_scheduler as torch_schedules

from dsx.builtin import schedules
from dsx.errors import ConfigError, EngineError
from dsx.optim.adam import AdamW
from dsx.optim.foreign import ForeignOptimizer
from dsx.optim.piece import Piece
from dsx.optim.schedule_driver import ClientSchedule, FunctionSchedule, LRSchedule, make_schedule, wrap_client
from dsx.optim.schedules import OneCycle, WarmupLR
from dsx.optim.sgd import SGD

REGISTRY = OwnComponents()


def sgd(lr: float = 1.0, **options: Any) -> SGD:
    return SGD([nn.Parameter(torch.zeros(1))], lr=lr, **options)


def made(kind: str, optimizer: Any, **params: Any) -> LRSchedule:
    found = make_schedule(Section(kind, params), optimizer=optimizer, registry=REGISTRY)
    assert found is not None
    return found


def descend(optimizer: Any, schedule: LRSchedule) -> float:
    """One update on a gradient of 1, as an engine makes it; gives how far the weight went."""
    (p,) = optimizer.param_groups[0]["params"]
    before = float(p.detach())
    p.grad = torch.ones(1)
    optimizer.step()
    schedule.advance()
    return before - float(p.detach())


LINEAR = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 10, "warmup_type": "linear"}


def test_the_first_update_uses_index_0() -> None:
    """B07: SGD at 1.0, linear warm-up to 0.1 over 10: the first update moves nothing, the second by index 1."""
    optimizer = sgd()
    schedule = made("WarmupLR", optimizer, **LINEAR)
    assert [descend(optimizer, schedule) for _ in range(3)] == pytest.approx([0.0, 0.01, 0.02])


@pytest.mark.parametrize("client", [False, True])
def test_the_rate_can_be_asked_before_the_first_update_and_after_a_skipped_one(client: bool) -> None:
    """B09: it is what the next update will use."""
    optimizer = sgd()
    schedule: LRSchedule
    if client:
        schedule = wrap_client(torch_schedules.LinearLR(optimizer, start_factor=0.1, total_iters=9), optimizer)
    else:
        schedule = made("WarmupLR", optimizer, **{**LINEAR, "warmup_min_lr": 0.1, "warmup_max_lr": 1.0})
    asked = schedule.get_last_lr()
    # the first update is skipped: nothing is advanced
    assert schedule.get_last_lr() == asked == pytest.approx([0.1])
    assert descend(optimizer, schedule) == pytest.approx(asked[0])
    (asked,) = schedule.get_last_lr()
    assert asked > 0.1
    assert descend(optimizer, schedule) == pytest.approx(asked)


def test_no_warmup_steps_runs_at_full_rate_at_once() -> None:
    """B10: zero warm-up steps are accepted."""
    optimizer = sgd(0.5)
    schedule = made("WarmupLR", optimizer, warmup_num_steps=0)
    assert descend(optimizer, schedule) == pytest.approx(0.5)


def lambda_lr(optimizer: Any) -> Any:
    return torch_schedules.LambdaLR(optimizer, lambda i: 1.0 / (1 + i))


def one_cycle_lr(optimizer: Any) -> Any:
    return torch_schedules.OneCycleLR(optimizer, max_lr=1.0, total_steps=30)


def chained(optimizer: Any) -> Any:
    parts = [torch_schedules.LinearLR(optimizer, 0.1, total_iters=5), torch_schedules.ExponentialLR(optimizer, 0.9)]
    return torch_schedules.SequentialLR(optimizer, parts, milestones=[5])


OWNERS: dict[str, Callable[[Any], LRSchedule]] = {
    "configured": lambda o: made("OneCycle", o, cycle_min_lr=0.1, cycle_max_lr=1.0, cycle_first_step_size=7),
    "configured torch": lambda o: made("torch.StepLR", o, step_size=3, gamma=0.5),
    "object of ours": lambda o: wrap_client(WarmupLR(warmup_num_steps=15), o),
    "client LambdaLR": lambda o: wrap_client(lambda_lr(o), o),
    "client function": lambda o: wrap_client(lambda_lr, o),
    "client OneCycleLR": lambda o: wrap_client(one_cycle_lr, o),
    "client SequentialLR": lambda o: wrap_client(chained, o),
    "client ExponentialLR": lambda o: wrap_client(lambda f: torch_schedules.ExponentialLR(f, 0.9), o),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_stopping_and_going_on_equals_going_on(owner: str) -> None:
    """B11: 10 updates, save, load into fresh objects, 10 more: the rates and weights of 20 unbroken ones."""
    whole = sgd(momentum=0.9)
    schedule = OWNERS[owner](whole)
    unbroken = [descend(whole, schedule) for _ in range(20)]

    first = sgd(momentum=0.9)
    schedule = OWNERS[owner](first)
    found = [descend(first, schedule) for _ in range(10)]
    saved = json.loads(json.dumps(schedule.state_dict(), default=str))
    saved = schedule.state_dict() if owner.startswith("client") else saved

    second = sgd(momentum=0.9)
    resumed = OWNERS[owner](second)
    optimizer_state = copy.deepcopy(first.state_dict())
    for group in optimizer_state["param_groups"]:
        group["lr"] = 123.0  # the schedule's own state must be enough
    second.load_state_dict(optimizer_state)
    resumed.load_state_dict(copy.deepcopy(saved))
    second.param_groups[0]["params"][0].detach().copy_(first.param_groups[0]["params"][0].detach())
    found += [descend(second, resumed) for _ in range(10)]
    assert found == pytest.approx(unbroken)
    assert len({round(f, 9) for f in unbroken}) > 3


@pytest.mark.parametrize("owner", OWNERS)
def test_refresh_brings_the_rates_back(owner: str) -> None:
    optimizer = sgd(momentum=0.9)
    schedule = OWNERS[owner](optimizer)
    for _ in range(3):
        descend(optimizer, schedule)
    wanted = schedule.get_last_lr()
    optimizer.param_groups[0]["lr"] = 123.0
    schedule.refresh()
    assert optimizer.param_groups[0]["lr"] == wanted[0]
    assert schedule.get_last_lr() == wanted


def test_going_to_any_index_is_pure() -> None:
    optimizer = sgd()
    schedule = FunctionSchedule(optimizer, WarmupLR(**LINEAR))  # type: ignore[arg-type]
    seen = []
    for index in (7, 3, 7, 0):
        schedule.apply(index)
        seen.append(schedule.get_last_lr()[0])
    assert seen == pytest.approx([0.07, 0.03, 0.07, 0.0])
    schedule.apply(7)
    schedule.advance()
    assert schedule.get_last_lr() == pytest.approx([0.08])


def test_groups_have_their_own_base_and_a_late_one_joins() -> None:
    p = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = SGD([{"params": p[:1], "lr": 1.0}, {"params": p[1:2], "lr": 0.5}])
    schedule = FunctionSchedule(optimizer, WarmupLR(warmup_num_steps=10, warmup_type="linear"))
    schedule.advance()
    assert schedule.get_last_lr() == pytest.approx([0.1, 0.05])
    optimizer.add_param_group({"params": p[2:], "lr": 2.0})
    schedule.advance()
    assert schedule.get_last_lr() == pytest.approx([0.2, 0.1, 0.4])
    with pytest.raises(ConfigError, match="has 1 parameter groups, this optimizer 3"):
        schedule.load_state_dict({"index": 1, "base_lrs": [1.0]})
    with pytest.raises(ConfigError, match="has 2 values"):
        FunctionSchedule(optimizer, WarmupLR(warmup_max_lr=(0.1, 0.2)))


def test_momentum_cycles_in_adam_and_sgd_and_keeps_the_second_beta() -> None:
    cycle = OneCycle(cycle_min_lr=0.1, cycle_max_lr=1.0, cycle_first_step_size=10)
    adam = AdamW([nn.Parameter(torch.zeros(1))], betas=(0.7, 0.95))
    FunctionSchedule(adam, cycle).apply(10)
    assert adam.param_groups[0]["betas"] == (pytest.approx(0.8), 0.95)
    with_momentum, without = sgd(momentum=0.5), sgd()
    for optimizer in (with_momentum, without):
        FunctionSchedule(optimizer, cycle).apply(5)
    assert with_momentum.param_groups[0]["momentum"] == pytest.approx(0.85)
    assert without.param_groups[0]["momentum"] == 0.0


def test_without_a_schedule_rates_are_the_users() -> None:
    optimizer = sgd(0.5)
    assert make_schedule(None, optimizer=optimizer, registry=REGISTRY) is None
    optimizer.param_groups[0]["lr"] = 0.25
    (p,) = optimizer.param_groups[0]["params"]
    p.grad = torch.ones(1)
    optimizer.step()
    assert float(p.detach()) == -0.25


def test_what_the_client_hands_over_wins() -> None:
    optimizer = sgd()
    found = make_schedule(Section("WarmupLR"), client=lambda_lr, optimizer=optimizer, registry=REGISTRY)
    assert isinstance(found, ClientSchedule)
    assert wrap_client(found, optimizer) is found


def test_a_client_scheduler_on_another_optimizer_is_brought_over() -> None:
    mine, theirs = sgd(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = wrap_client(lambda_lr(theirs), mine)
    assert [descend(mine, schedule) for _ in range(3)] == pytest.approx([1.0, 1 / 2, 1 / 3])
    two = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)], lr=1.0)
    with pytest.raises(EngineError, match="has 2 parameter groups, the engine's 1"):
        wrap_client(lambda_lr(two), mine)


def test_a_foreign_optimizer_shows_schedulers_its_inner_one() -> None:
    optimizer = ForeignOptimizer(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    seen: list[Any] = []

    def make(inner: torch.optim.Optimizer) -> Any:
        seen.append(inner)
        return lambda_lr(inner)

    schedule = wrap_client(make, optimizer)
    assert seen == [optimizer.inner]
    assert [descend(optimizer, schedule) for _ in range(3)] == pytest.approx([1.0, 1 / 2, 1 / 3])


def test_torch_does_not_warn_that_step_was_never_called() -> None:
    """Engines call ``update``; torch's scheduler looks for ``step``. Warnings are errors here."""
    optimizer = sgd()
    (p,) = optimizer.param_groups[0]["params"]
    schedule = wrap_client(lambda_lr(optimizer), optimizer)
    optimizer.update([Piece("p", p, torch.ones(1), None)])
    schedule.advance()
    assert schedule.get_last_lr() == [0.5]


def test_a_plateau_is_stepped_by_its_owner() -> None:
    optimizer = sgd()
    plateau = torch_schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    schedule = wrap_client(plateau, optimizer)
    schedule.advance()
    assert schedule.get_last_lr() == [1.0]
    for loss in (1.0, 2.0):
        plateau.step(loss)
    assert schedule.get_last_lr() == [0.5]


def test_any_object_that_steps_will_do() -> None:
    class Halving:
        def __init__(self, optimizer: Any) -> None:
            self.groups = optimizer.param_groups

        def step(self) -> None:
            self.groups[0]["lr"] /= 2

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state == {}

    optimizer = sgd()
    schedule = wrap_client(Halving(optimizer), optimizer)
    schedule.step()
    saved = schedule.state_dict()
    schedule.step()
    schedule.load_state_dict(saved)
    assert schedule.get_last_lr() == [0.5]
    with pytest.raises(EngineError, match="a dict was given as learning-rate scheduler, but it has no step"):
        wrap_client({}, optimizer)
    two = wrap_client(lambda_lr, SGD([{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]))
    with pytest.raises(ConfigError, match="has 1 parameter groups, this optimizer 2"):
        two.load_state_dict(saved)


@pytest.mark.parametrize("component", list(schedules.components()), ids=lambda component: component.name)
def test_every_name_is_built_with_its_required_params(component: Any) -> None:
    required: dict[str, dict[str, Any]] = {
        "WarmupDecayLR": {"total_num_steps": 5},
        "WarmupCosineLR": {"total_num_steps": 5},
        "OneCycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2},
        "LambdaLR": {"lr_lambda": lambda i: 1.0},
        "MultiplicativeLR": {"lr_lambda": lambda i: 1.0},
        "StepLR": {"step_size": 1},
        "MultiStepLR": {"milestones": [1]},
        "ExponentialLR": {"gamma": 0.9},
        "CosineAnnealingLR": {"T_max": 5},
        "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2},
        "OneCycleLR": {"max_lr": 0.1, "total_steps": 5},
        "CosineAnnealingWarmRestarts": {"T_0": 5},
    }
    optimizer = sgd(momentum=0.9)
    schedule = made(component.name, optimizer, **required.get(component.name, {}))
    descend(optimizer, schedule)
    assert schedule.get_last_lr()[0] >= 0


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("WarmupLR", {"warmup_num_step": 3}, r"did you mean 'warmup_num_steps'"),
        ("WarmupLR", {"foo": 3}, "WarmupLR takes: warmup_num_steps"),
        ("WarmupDecayLR", {}, "scheduler.params.total_num_steps is missing, and WarmupDecayLR needs it"),
        ("StepLR", {}, "scheduler.params.step_size is missing"),
    ],
)
def test_wrong_params_are_config_errors(kind: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(kind, sgd(), **params)
    with pytest.raises(ConfigError, match="there is no optimizer"):
        made(kind, None)
