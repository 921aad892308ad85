"""Learning rates as pure functions of the update index. Parameter names and formulas are DeepSpeed's.

Index 0 is the first update. A schedule knows no optimizer: ``dsx.optim.schedule_driver`` applies it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

from dsx.errors import ConfigError

Rate = float | tuple[float, ...]
"""One value for all parameter groups, or one for each."""


def _of(value: Any, group: int) -> float:
    return float(value[group] if isinstance(value, tuple) else value)


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A learning rate, and for some a momentum, for each update index and parameter group."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        self.check()

    @abstractmethod
    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        """The rate for this update. ``base_lr`` is the rate that the group was built with."""

    def momentum(self, index: int, *, group: int = 0) -> float | None:
        """The momentum (SGD) or first beta (Adam) for this update; ``None``: left alone."""
        return None

    def check(self) -> None:
        """Raise ConfigError for values that make no schedule. A subclass that adds rules calls this first."""
        for field in fields(self):
            value = getattr(self, field.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(field.default, str) or one is None:
                    continue
                if not isinstance(one, (int, float)) or not math.isfinite(one):
                    raise ConfigError(f"scheduler.params.{field.name} is {one!r}, wanted a finite number")

    def check_groups(self, count: int) -> None:
        """Raise ConfigError where a value is a list of another length than the number of parameter groups."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and len(value) != count:
                raise ConfigError(
                    f"scheduler.params.{field.name} has {len(value)} values, but there are {count} parameter groups: "
                    "give one value, or one for each group"
                )

    def _not_negative(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None and not one >= 0:
                    raise ConfigError(f"scheduler.params.{name} is {one!r} in {type(self).__name__}, wanted at least 0")


@dataclass(frozen=True, kw_only=True)
class _Warmup(Schedule):
    """What the warm-up schedules share: the growth from 0 to 1 over the first updates."""

    warmup_num_steps: int = 1000
    warmup_type: str = "log"

    @property
    def _steps(self) -> int:
        return max(2, self.warmup_num_steps) if self.warmup_num_steps else 0  # the logarithm of 1 is no divisor

    def _growth(self, index: int) -> float | None:
        """A number from 0 to 1 during warm-up, ``None`` after it. No warm-up where it has no steps."""
        if index >= self._steps:
            return None
        return math.log(index + 1) / math.log(self._steps) if self.warmup_type == "log" else index / self._steps

    def check(self) -> None:
        super().check()
        self._not_negative("warmup_num_steps")
        if self.warmup_type not in ("log", "linear"):
            raise ConfigError(f"scheduler.params.warmup_type is {self.warmup_type!r}, wanted 'log' or 'linear'")


@dataclass(frozen=True, kw_only=True)
class WarmupLR(_Warmup):
    """Grows from ``warmup_min_lr`` to ``warmup_max_lr`` (default: the group's own rate), then stays."""

    warmup_min_lr: Rate = 0.0
    warmup_max_lr: Rate | None = None

    def check(self) -> None:
        super().check()
        self._not_negative("warmup_min_lr", "warmup_max_lr")

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        low = _of(self.warmup_min_lr, group)
        high = base_lr if self.warmup_max_lr is None else _of(self.warmup_max_lr, group)
        return low + (high - low) * self._gamma(index)

    def _gamma(self, index: int) -> float:
        growth = self._growth(index)
        return 1.0 if growth is None else growth


@dataclass(frozen=True, kw_only=True)
class WarmupDecayLR(WarmupLR):
    """Grows as WarmupLR, then falls in a line to ``warmup_min_lr`` at update ``total_num_steps``."""

    warmup_max_lr: Rate | None = 0.001
    total_num_steps: int

    def check(self) -> None:
        super().check()
        _check_total(self.total_num_steps, type(self).__name__)

    def _gamma(self, index: int) -> float:
        growth = self._growth(index)
        if growth is not None:
            return growth
        length = max(1, self.total_num_steps - self._steps)
        return min(1.0, max(0.0, (self.total_num_steps - index) / length))


@dataclass(frozen=True, kw_only=True)
class WarmupCosineLR(_Warmup):
    """The group's rate times a ratio: ``warmup_min_ratio`` to 1, then a half cosine down to ``cos_min_ratio``."""

    total_num_steps: int
    warmup_min_ratio: float = 0.0
    cos_min_ratio: float = 0.0001

    def check(self) -> None:
        super().check()
        self._not_negative("warmup_min_ratio", "cos_min_ratio")
        _check_total(self.total_num_steps, type(self).__name__)

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        return base_lr * self._ratio(index)

    def _ratio(self, index: int) -> float:
        growth = self._growth(index)
        if growth is not None:
            return self.warmup_min_ratio + (1.0 - self.warmup_min_ratio) * growth
        done = index - self._steps + (1 if self._steps else 0)  # DeepSpeed's count; update 0 is whole without warm-up
        progress = min(1.0, done / max(1, self.total_num_steps - self._steps))
        cosine = (1.0 + math.cos(math.pi * progress)) / 2.0
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * cosine)


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """Up from ``cycle_min_lr`` to ``cycle_max_lr``, down again, then decay; the momentum moves the other way.

    Stair counts of 1 or more cut that half of the cycle into as many equal stairs. See Smith, arXiv:1803.09820.
    """

    cycle_min_lr: Rate
    cycle_max_lr: Rate
    decay_lr_rate: float = 0.0
    cycle_first_step_size: int = 2000
    cycle_second_step_size: int | None = None
    cycle_first_stair_count: int = 0
    cycle_second_stair_count: int | None = None
    decay_step_size: int = 0
    cycle_momentum: bool = True
    cycle_min_mom: float = 0.8
    cycle_max_mom: float = 0.9
    decay_mom_rate: float = 0.0

    def check(self) -> None:
        super().check()
        self._not_negative("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "decay_mom_rate", "decay_step_size")
        self._not_negative("cycle_first_stair_count", "cycle_second_stair_count")
        for name in ("cycle_first_step_size", "cycle_second_step_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"scheduler.params.{name} is {size}, wanted at least 1")
        if not 0 <= self.cycle_min_mom <= self.cycle_max_mom < 1:
            raise ConfigError(
                f"scheduler.params.cycle_min_mom and cycle_max_mom are {self.cycle_min_mom} and {self.cycle_max_mom}, "
                "wanted 0 <= min <= max < 1"
            )

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        low, high = _of(self.cycle_min_lr, group), _of(self.cycle_max_lr, group)
        if index <= self._length:
            return low + (high - low) * self._height(index)
        return low / (1.0 + self.decay_lr_rate * self._decays(index))

    def momentum(self, index: int, *, group: int = 0) -> float | None:
        if not self.cycle_momentum:
            return None
        if index <= self._length:
            return self.cycle_max_mom - (self.cycle_max_mom - self.cycle_min_mom) * self._height(index)
        grown = self.cycle_max_mom * (1.0 + self.decay_mom_rate * self._decays(index))
        return min(grown, 1.0 - 1e-6)  # a momentum of 1 never forgets, and Adam's correction divides by 1 - beta

    @property
    def _second(self) -> int:
        return self.cycle_first_step_size if self.cycle_second_step_size is None else self.cycle_second_step_size

    @property
    def _length(self) -> int:
        return self.cycle_first_step_size + self._second

    def _height(self, index: int) -> float:
        """0 at both ends of the cycle, 1 at its peak."""
        first = self.cycle_first_step_size
        if index <= first:
            return _stairs(index / first, self.cycle_first_stair_count)
        second_stairs = self.cycle_second_stair_count
        count = self.cycle_first_stair_count if second_stairs is None else second_stairs
        return 1.0 - _stairs((index - first) / self._second, count)

    def _decays(self, index: int) -> float:
        return (index - self._length) / self.decay_step_size if self.decay_step_size else 0.0


@dataclass(frozen=True, kw_only=True)
class LRRangeTest(Schedule):
    """Grows without bound from ``lr_range_test_min_lr``, to find the largest rate that trains. arXiv:1506.01186."""

    lr_range_test_min_lr: Rate = 1e-3
    lr_range_test_step_size: int = 2000
    lr_range_test_step_rate: float = 1.0
    lr_range_test_staircase: bool = False

    def check(self) -> None:
        super().check()
        self._not_negative("lr_range_test_min_lr", "lr_range_test_step_rate")
        if self.lr_range_test_step_size < 1:
            raise ConfigError(
                f"scheduler.params.lr_range_test_step_size is {self.lr_range_test_step_size}, wanted at least 1"
            )

    def rate(self, index: int, base_lr: float, *, group: int = 0) -> float:
        interval = index / self.lr_range_test_step_size
        if self.lr_range_test_staircase:
            interval = math.floor(interval)
        return _of(self.lr_range_test_min_lr, group) * (1.0 + self.lr_range_test_step_rate * interval)


def _stairs(progress: float, count: int) -> float:
    return math.floor(progress * count) / count if count else progress


def _check_total(total_num_steps: int, name: str) -> None:
    if total_num_steps < 1:
        raise ConfigError(f"scheduler.params.total_num_steps is {total_num_steps} in {name}, wanted at least 1")
