"""Parameter groups by name, and an optimizer bound to whatever pieces the driver cuts for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from dsx.errors import ConfigError
from dsx.optim.piece import Ownership, Piece


class Updater(Protocol):
    """What a driver asks of an optimizer, its own or a foreign one."""

    def update(self, pieces: Sequence[Piece], *, factor: float = 1.0) -> None: ...
    def init_state(self, pieces: Sequence[Piece]) -> None: ...


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """Names of parameters with one set of hyper-parameters."""

    names: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptimizerBinding:
    """How the optimizer is made once its pieces exist. What ``dsx_make_driver`` gets as ``make_inner``."""

    groups: tuple[ParamGroup, ...]
    ownership: Ownership
    build: Callable[[list[dict[str, Any]]], Updater] | None
    """Builds over torch's parameter groups; ``None`` for an engine that never updates."""

    def __call__(self, pieces: Sequence[Sequence[Piece]]) -> Updater | None:
        """The updater over these pieces, one sequence a group."""
        if self.build is None:
            return None
        groups = []
        for group, members in zip(self.groups, pieces, strict=True):
            names = [piece.name for piece in members]
            groups.append({**group.options, "params": [piece.master for piece in members], "param_names": names})
        return self.build(groups)


def named_groups(model: nn.Module, params: Iterable[Any] | None) -> tuple[ParamGroup, ...]:
    """Parameters or torch-style groups of them, as groups of names of this model.

    Frozen parameters are left out; a parameter that is not the model's, or stands in two groups, is an error.
    """
    names = {id(param): name for name, param in model.named_parameters()}
    given = list(model.parameters() if params is None else params)
    raw: list[dict[str, Any]] = given if given and isinstance(given[0], dict) else [{"params": given}]
    groups: list[ParamGroup] = []
    seen: dict[str, int] = {}
    for index, group in enumerate(raw):
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        members = group["params"]
        members = [members] if isinstance(members, torch.Tensor) else list(members)
        found = []
        for entry in members:
            param = entry[1] if isinstance(entry, tuple) else entry
            name = names.get(id(param))
            if name is None:
                raise ConfigError(
                    f"parameter group {index} holds a tensor of shape {tuple(param.shape)} that is not a parameter of "
                    "the model: pass parameters of the same model object, before it is copied or wrapped"
                )
            if name in seen:
                raise ConfigError(
                    f"parameter {name!r} stands in groups {seen[name]} and {index}: each parameter belongs to one group"
                )
            seen[name] = index
            if param.requires_grad:
                found.append(name)
        groups.append(ParamGroup(tuple(found), options))
    return tuple(groups)
