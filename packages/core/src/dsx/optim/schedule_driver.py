"""Puts learning rates into an optimizer's groups before each update: from our schedules, or a client's scheduler."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from dsx.errors import ConfigError, EngineError
from dsx.optim.components import Components, Named
from dsx.optim.parameters import check_params
from dsx.optim.schedules import Schedule
from dsx.plugin.kinds import SCHEDULE
from dsx.registry.building import building

_GROUP_KEYS = ("lr", "initial_lr", "betas", "momentum")


class HasGroups(Protocol):
    """An optimizer, as far as a schedule cares."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


class LRSchedule(ABC):
    """What an engine holds as its learning-rate schedule.

    The groups show the rate of the next update at all times, from construction on. ``advance`` is called once after
    each update that was made, never after a skipped one.
    """

    def __init__(self, optimizer: HasGroups) -> None:
        self.optimizer = optimizer

    @abstractmethod
    def advance(self) -> None:
        """An update was made: set the rates of the next one."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was taken, and set the rates of the next update."""

    @abstractmethod
    def apply(self, index: int) -> None:
        """Set the rates of this update index, before that update. A client's scheduler knows only the next one."""

    @abstractmethod
    def refresh(self) -> None:
        """Set the rates of the next update again, after the groups were overwritten by a checkpoint's."""

    def get_last_lr(self) -> list[float]:
        """The rate of each group in the next update. Valid before the first update and after a skipped one."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self) -> None:
        """``advance``, under the name that torch's schedulers have. Engines call it themselves."""
        self.advance()


class FunctionSchedule(LRSchedule):
    """One of our schedules over an optimizer. The base rate of a group is its rate when this is built."""

    def __init__(self, optimizer: HasGroups, function: Schedule) -> None:
        super().__init__(optimizer)
        self.function = function
        self.index = 0
        """Index of the next update."""
        self.base_lrs: list[float] = []
        function.check_groups(len(optimizer.param_groups))
        self.apply(0)

    def apply(self, index: int) -> None:
        self.index = index
        for number, group in enumerate(self.optimizer.param_groups):
            if number == len(self.base_lrs):  # a group may be added while training
                self.base_lrs.append(float(group.setdefault("initial_lr", float(group["lr"]))))
            _set_rate(group, self.function.rate(index, self.base_lrs[number], group=number))
            momentum = self.function.momentum(index, group=number)
            if momentum is not None:
                _set_momentum(group, momentum)

    def refresh(self) -> None:
        self.apply(self.index)

    def advance(self) -> None:
        self.apply(self.index + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        saved = [float(rate) for rate in state_dict["base_lrs"]]
        if len(saved) != len(self.base_lrs):
            raise ConfigError(
                f"the checkpoint's schedule has {len(saved)} parameter groups, this optimizer {len(self.base_lrs)}: "
                "build the same groups, or load without the schedule"
            )
        self.base_lrs = saved
        self.apply(int(state_dict["index"]))


class ClientSchedule(LRSchedule):
    """A scheduler that a user brings: torch's, or any object with ``step``, ``state_dict`` and ``load_state_dict``.

    Torch's schedulers set the rate of update 0 when they are built, and that of the next update in ``step``: the same
    convention as ours. ``ReduceLROnPlateau`` needs a metric that no engine has: its owner steps it. A scheduler built
    on another optimizer than the engine's has its rates brought over.
    """

    def __init__(self, optimizer: HasGroups, scheduler: Any) -> None:
        super().__init__(optimizer)
        _check_client(scheduler)
        self.scheduler = scheduler
        theirs = getattr(getattr(scheduler, "optimizer", None), "param_groups", optimizer.param_groups)
        if len(theirs) != len(optimizer.param_groups):
            raise EngineError(
                f"the scheduler's optimizer has {len(theirs)} parameter groups, the engine's "
                f"{len(optimizer.param_groups)}: give a function of the optimizer that returns the scheduler"
            )
        self._shown: list[dict[str, Any]] = []
        self._show()

    def apply(self, index: int) -> None:
        self._show()

    def refresh(self) -> None:
        for kept, (group, other) in zip(self._shown, self._pairs(), strict=False):
            _copy_rates(kept, group)
            _copy_rates(kept, other)

    def advance(self) -> None:
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return
        with warnings.catch_warnings():
            # torch looks for calls of optimizer.step(), and an engine calls update()
            warnings.filterwarnings("ignore", message="Detected call of")
            self.scheduler.step()
        self._show()

    def get_last_lr(self) -> list[float]:
        self._show()
        return super().get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        self._show()
        return {"scheduler": self.scheduler.state_dict(), "groups": [dict(kept) for kept in self._shown]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        saved = [dict(kept) for kept in state_dict["groups"]]
        if len(saved) != len(self.optimizer.param_groups):
            raise ConfigError(
                f"the checkpoint's scheduler has {len(saved)} parameter groups, this optimizer "
                f"{len(self.optimizer.param_groups)}: build the same groups, or load without the scheduler"
            )
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self._shown = saved
        self.refresh()

    def _pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Each group of the engine's optimizer with that of the scheduler's, which may be the same."""
        ours = self.optimizer.param_groups
        theirs = getattr(getattr(self.scheduler, "optimizer", None), "param_groups", ours)
        return list(zip(ours, theirs, strict=True))

    def _show(self) -> None:
        """Bring the scheduler's rates into the engine's groups, and remember them."""
        self._shown = []
        for group, other in self._pairs():
            if group is not other:
                _copy_rates(other, group)
            kept: dict[str, Any] = {}
            _copy_rates(group, kept)
            self._shown.append(kept)


def make_schedule(
    section: Named | None, *, client: Any = None, optimizer: Any, registry: Components
) -> LRSchedule | None:
    """The schedule over this optimizer's groups, already showing the rates of update 0; ``None`` for no schedule.

    ``client`` is what the user handed over (see ``wrap_client``); it wins over ``section``, which is
    ``config.scheduler``. Without a schedule the rates are what the groups say, also where a user sets them by hand.
    Raises ConfigError for params that the schedule does not take.
    """
    if client is not None:
        return wrap_client(client, optimizer)
    if section is None:
        return None
    if optimizer is None:
        raise ConfigError(f"scheduler.type is {section.type}, but there is no optimizer: name one, or drop the section")
    factory = registry.get(SCHEDULE, section.type)
    check_params("scheduler", section.type, factory, section.params)
    with building(registry, SCHEDULE, section.type):
        if isinstance(factory, type) and issubclass(factory, Schedule):
            return FunctionSchedule(optimizer, factory(**section.params))
        return wrap_client(factory(torch_face(optimizer), **section.params), optimizer)


def wrap_client(scheduler: Any, optimizer: HasGroups) -> LRSchedule:
    """What a user brings, as an engine holds it: a torch scheduler or one like it, one of ``dsx.optim.schedules``, or a
    function of the optimizer that returns either."""
    if isinstance(scheduler, LRSchedule):
        return scheduler
    if isinstance(scheduler, Schedule):
        return FunctionSchedule(optimizer, scheduler)
    if callable(scheduler) and not hasattr(scheduler, "step"):
        make: Callable[[Any], Any] = scheduler
        return wrap_client(make(torch_face(optimizer)), optimizer)
    return ClientSchedule(optimizer, scheduler)


def torch_face(optimizer: Any) -> Any:
    """The torch optimizer that schedulers can be built on: the inner one of a ForeignOptimizer, else itself."""
    return getattr(optimizer, "inner", optimizer)


def _check_client(scheduler: Any) -> None:
    lacking = [
        name for name in ("step", "state_dict", "load_state_dict") if not callable(getattr(scheduler, name, None))
    ]
    if lacking:
        raise EngineError(
            f"a {type(scheduler).__name__} was given as learning-rate scheduler, but it has no {', '.join(lacking)}: "
            "give a torch scheduler, one of dsx.optim.schedules, or a function of the optimizer that returns one"
        )


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _set_momentum(group: dict[str, Any], momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    elif group.get("momentum"):  # SGD without momentum keeps it so
        group["momentum"] = momentum


def _copy_rates(source: Mapping[str, Any], target: dict[str, Any]) -> None:
    for key in _GROUP_KEYS:
        if key in source:
            value = source[key]
            value = float(value) if isinstance(value, torch.Tensor) else value
            if isinstance(target.get(key), torch.Tensor):
                target[key].fill_(value)
            else:
                target[key] = value
