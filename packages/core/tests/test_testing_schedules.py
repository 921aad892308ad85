"""check_schedule passes every schedule that the core names, and finds each way of breaking a law."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dsx.optim.schedules import Schedule
from dsx.testing import check_schedule

PARAMS: Mapping[str, Mapping[str, Any]] = {
    "WarmupLR": {"warmup_num_steps": 9},
    "WarmupDecayLR": {"total_num_steps": 30, "warmup_num_steps": 5},
    "WarmupCosineLR": {"total_num_steps": 30, "warmup_num_steps": 5},
    "OneCycle": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 7},
    "LRRangeTest": {"lr_range_test_step_size": 5},
    "StepLR": {"step_size": 3},
    "torch.CosineAnnealingLR": {"T_max": 9},
    "CosineAnnealingWarmRestarts": {"T_0": 7},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 100},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2},
    "ExponentialLR": {"gamma": 0.9},
    "LinearLR": {},
    "ReduceLROnPlateau": {},
}


@pytest.mark.parametrize("name", PARAMS)
def test_what_the_core_names_passes(name: str) -> None:
    check_schedule(name, params=PARAMS[name])


@dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """A lawful schedule of an outsider."""

    every: int = 5

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return base_lr * 0.5 ** (index // self.every)


def test_a_class_is_checked_as_if_it_were_registered() -> None:
    check_schedule(Halving, params={"every": 3})
    with pytest.raises(AssertionError, match="raised ConfigError: scheduler.params.evry is not a parameter"):
        check_schedule(Halving, params={"evry": 3})
    with pytest.raises(AssertionError, match="finding the schedule 'WarmupL' raised PluginError"):
        check_schedule("WarmupL")


class Negative(Halving):
    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return base_lr * (1 - index / 10)


class Endless(Halving):
    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return math.inf if index > 30 else base_lr


class Overflows(Halving):
    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return base_lr * math.exp(index / 100)


class Heavy(Halving):
    def momentum(self, index: int, *, group: int = 0) -> float | None:
        return 1.0


class OneRate(Halving):
    """Moves every group by the first one's place."""

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return base_lr * (1 + group)


class Random(Halving):
    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return base_lr * float(torch.rand(()))


@dataclass(frozen=True, kw_only=True)
class Remembers(Halving):
    """Each rate depends on those asked before."""

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        seen = self.__dict__.setdefault("_seen", [])
        seen.append(index)
        return base_lr / len(seen)


class ByTorch:
    """A lawful scheduler in torch's form."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0
        self.base = [group["lr"] for group in optimizer.param_groups]

    def step(self) -> None:
        self.count += 1
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base / (1 + self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Forgets(ByTorch):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class FirstOnly(ByTorch):
    def step(self) -> None:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] *= 0.5
        if len(self.optimizer.param_groups) > 1:
            self.optimizer.param_groups[1]["lr"] = 0.02


class Unsaved(ByTorch):
    def state_dict(self) -> dict[str, Any]:
        return {"count": lambda: self.count}


def test_a_scheduler_in_torchs_form_passes() -> None:
    check_schedule(ByTorch)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Negative, "the rate of group 0 before update 11 is -"),
        (Endless, "the rate of group 0 before update 31 is inf"),
        (Overflows, "raised OverflowError"),
        (Heavy, "the momentum of group 0 before update 0 is 1.0"),
        (OneRate, "group 1 has rate and momentum .* alone it has"),
        (Random, "two courses differ"),
        (Remembers, "rate"),
        (Forgets, "reloaded before update 1 and uninterrupted, the rates differ"),
        (FirstOnly, "group 1 has rate and momentum"),
        (Unsaved, "(PicklingError|AttributeError)"),
    ],
)
def test_each_broken_law_is_found(wrong: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_schedule(wrong)
