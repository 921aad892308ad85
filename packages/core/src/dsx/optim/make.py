"""An optimizer from what a user gives: a configuration, an instance, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dsx.errors import ConfigError, EngineError
from dsx.optim.base import Optimizer
from dsx.optim.components import Components, Named
from dsx.optim.foreign import ELEMENTWISE, ForeignOptimizer
from dsx.optim.parameters import accepted, check_params
from dsx.plugin.kinds import OPTIMIZER
from dsx.precision.policy import PrecisionPolicy
from dsx.registry.building import building

AnyOptimizer = Optimizer | ForeignOptimizer


def make_optimizer(
    spec: Named | torch.optim.Optimizer | ForeignOptimizer | Callable[..., Any],
    param_groups: Iterable[Any] | None = None,
    *,
    registry: Components,
    precision: PrecisionPolicy | None = None,
) -> AnyOptimizer:
    """The optimizer over these groups of masters, as a driver calls it.

    ``spec`` is ``config.optimizer``, a function of the groups that returns a torch optimizer, or an instance: its own
    groups are pointed at the masters, unless ``param_groups`` is ``None``. ``precision`` gives the dtype of moments
    to optimizers that take it and whose params do not. Raises ConfigError for params that the optimizer does not take,
    EngineError for optimizers that cannot be driven.
    """
    if isinstance(spec, (torch.optim.Optimizer, ForeignOptimizer)):
        if param_groups is not None:
            rebind(_inner(spec), _as_groups(param_groups))
        return _drive(spec, registry)
    groups = _as_groups(param_groups or ())
    if hasattr(spec, "type") and hasattr(spec, "params"):
        return _drive(_from_config(spec, groups, registry, precision), registry)
    if not callable(spec):
        raise EngineError(
            f"optimizer is a {type(spec).__name__}, wanted a torch optimizer or a function of the parameter groups"
        )
    return _drive(spec(groups), registry)


def optimizer_class(section: Named, *, registry: Components) -> Callable[..., Any]:
    """What ``make_optimizer`` will build from this section, before any tensor exists; its params are checked."""
    factory: Callable[..., Any] = registry.get(OPTIMIZER, section.type)
    check_params("optimizer", section.type, factory, section.params, leading=1)
    return factory


def ownership_of(optimizer: Any) -> Literal["element", "parameter"]:
    """Whether this optimizer (instance, class or factory) updates any flat range, or needs whole parameters.

    Torch's element-wise classes are known; any other says ``ownership = "element"`` itself, or gets whole parameters.
    """
    if isinstance(optimizer, ForeignOptimizer):
        return optimizer.ownership
    kind = type(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    if kind in ELEMENTWISE or getattr(kind, "ownership", "parameter") == "element":
        return "element"
    return "parameter"


def rebind(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
    """Point a user's optimizer at other tensors, group by group, keeping its group objects and their settings.

    Raises EngineError where it has taken steps, ConfigError for another number of groups.
    """
    if len(optimizer.param_groups) != len(groups):
        raise ConfigError(
            f"the optimizer has {len(optimizer.param_groups)} parameter groups, the engine made {len(groups)}: "
            "give a function of the groups instead, such as lambda groups: torch.optim.SGD(groups, lr=0.1)"
        )
    old = [p for group in optimizer.param_groups for p in group["params"]]
    new = [p for group in groups for p in group["params"]]
    if len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True)):
        return optimizer
    if any(_has_stepped(state) for state in optimizer.state.values()):
        raise EngineError(
            f"the {type(optimizer).__name__} has already taken steps: its state belongs to tensors that the engine "
            "replaces. Give a fresh optimizer, and bring the state in with load_checkpoint"
        )
    fresh = dict(optimizer.state)
    optimizer.state.clear()
    for group, theirs in zip(optimizer.param_groups, groups, strict=True):
        before, group["params"] = group["params"], list(theirs["params"])
        if theirs.get("param_names") or "param_names" in group:
            group["param_names"] = list(theirs.get("param_names") or [""] * len(group["params"]))
        if before and fresh.get(before[0]):
            for master in group["params"]:
                optimizer.state[master] = _carry(fresh[before[0]], master)
    return optimizer


def _inner(optimizer: torch.optim.Optimizer | ForeignOptimizer) -> torch.optim.Optimizer:
    return optimizer.inner if isinstance(optimizer, ForeignOptimizer) else optimizer


def _as_groups(param_groups: Iterable[Any]) -> list[dict[str, Any]]:
    given = list(param_groups)
    if given and isinstance(given[0], dict):
        return given
    return [{"params": given}]


def _from_config(
    section: Named, groups: list[dict[str, Any]], registry: Components, precision: PrecisionPolicy | None
) -> Any:
    factory = optimizer_class(section, registry=registry)
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in section.params.items()}
    takes = accepted(factory, leading=1)
    if precision is not None and precision.states != torch.float32 and takes is not None and "state_dtype" in takes:
        params.setdefault("state_dtype", precision.states)
    with building(registry, OPTIMIZER, section.type):
        return factory(groups, **params)


def _drive(optimizer: Any, registry: Components) -> AnyOptimizer:
    if isinstance(optimizer, Optimizer):
        optimizer.use_kernels(registry)
        return optimizer
    if isinstance(optimizer, ForeignOptimizer):
        return optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        return ForeignOptimizer(optimizer)
    raise EngineError(
        f"the optimizer is a {type(optimizer).__name__}, wanted an instance of torch.optim.Optimizer: "
        "derive from it, or give a function that builds one"
    )


def _has_stepped(state: Mapping[str, Any]) -> bool:
    """Torch's Adagrad has a state from the start, with step 0."""
    return bool(state) and ("step" not in state or float(state["step"]) != 0)


def _carry(state: Mapping[str, Any], master: Tensor) -> dict[str, Any]:
    """A state of step 0, whose tensors are constant, for a master of another shape."""
    carried: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            carried[key] = torch.full_like(master, float(value.flatten()[0]) if value.numel() else 0.0)
        else:
            carried[key] = value.clone() if isinstance(value, Tensor) else value
    return carried
