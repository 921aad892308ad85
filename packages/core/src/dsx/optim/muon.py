"""Muon for hidden matrices, Adam for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dsx.errors import ConfigError
from dsx.optim.adam import adam_arguments
from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named, pair_of_betas
from dsx.optim.runs import Rule


class Muon(Optimizer):
    """Muon: momentum whose matrices are orthogonalised, for hidden weights; AdamW for everything else.

    A parameter is a hidden matrix if it has two dims or more and no part of its name says embedding or head (see
    ``is_hidden_matrix``); ``use_muon`` in its group decides otherwise. ``muon_lr`` and ``adam_lr`` are the two rates;
    a schedule of the group's ``lr`` moves both in proportion. It needs whole parameters.
    https://kellerjordan.github.io/posts/muon
    """

    ownership: ClassVar[Literal["element", "parameter"]] = "parameter"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        *,
        muon_lr: float | None = None,
        adam_lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        nesterov: bool = True,
        ns_steps: int = 5,
        ns_method: Literal["gram", "standard"] = "gram",
        state_dtype: torch.dtype | str | None = None,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        if ns_method not in ("gram", "standard"):
            raise ConfigError(f"optimizer.params.ns_method is {ns_method!r}, wanted 'gram' or 'standard'")
        if ns_steps < 1:
            raise ConfigError(f"optimizer.params.ns_steps is {ns_steps}, wanted at least 1")
        base = named(_first(lr, muon_lr, adam_lr), "lr")
        defaults = {
            "lr": base,
            "momentum": named(momentum, "momentum", below=1.0),
            "weight_decay": named(weight_decay, "weight_decay"),
            "muon_scale": _scale(muon_lr, base, "muon_lr"),
            "adam_scale": _scale(adam_lr, base, "adam_lr"),
            "betas": pair_of_betas(betas),
            "eps": named(eps, "eps"),
            "nesterov": bool(nesterov),
            "ns_steps": int(ns_steps),
            "ns_method": ns_method,
            "adam_w_mode": True,
            "bias_correction": True,
            "use_muon": None,
        }
        super().__init__(params, defaults, kernels=kernels, state_dtype=state_dtype)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        chosen = group["use_muon"]
        if chosen if chosen is not None else is_hidden_matrix(name, master):
            if master.dim() < 2:
                raise ConfigError(
                    f"parameter {name!r} of shape {tuple(master.shape)} is in a group with use_muon, but Muon needs a "
                    "matrix: move it to a group without"
                )
            return Rule("muon_step", self.moments(master, "momentum_buffer"), merge=False)
        return Rule("adam_step", self.moments(master, "exp_avg", "exp_avg_sq"))

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        rate = float(group["lr"])
        if rule.operation == "adam_step":
            return adam_arguments(group, step=step, lr=rate * group["adam_scale"])
        keys = ("momentum", "nesterov", "weight_decay", "ns_steps", "ns_method")
        return {"lr": rate * group["muon_scale"], **{key: group[key] for key in keys}}


def is_hidden_matrix(name: str, tensor: Tensor) -> bool:
    """Whether Muon takes this parameter: two dims or more, and no embedding or head by its name.

    A part of the dotted name that contains ``embed``, is ``wte``, ``wpe``, ``head`` or ends in ``_head`` says so.
    """
    parts = name.lower().split(".")
    outer = any("embed" in part or part in ("wte", "wpe", "head") or part.endswith("_head") for part in parts)
    return tensor.dim() >= 2 and not outer


def _first(*rates: float | None) -> float:
    return next((rate for rate in rates if rate is not None), 1e-3)


def _scale(rate: float | None, base: float, key: str) -> float:
    if rate is None:
        return 1.0
    if base == 0:
        raise ConfigError(f"optimizer.params.lr is 0 with {key} {rate}: give the base rate, which schedules move")
    return named(rate, key) / base
