"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from torch import Tensor

from dsx.errors import ConfigError
from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named
from dsx.optim.runs import Rule


class SGD(Optimizer):
    """SGD with momentum, dampening, Nesterov's look-ahead and L2 weight decay, as torch's."""

    ownership: ClassVar[Literal["element", "parameter"]] = "element"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ConfigError(
                f"optimizer.params.nesterov is true with momentum {momentum} and dampening {dampening}, "
                "wanted a positive momentum and no dampening"
            )
        defaults = {
            "lr": named(lr, "lr"),
            "momentum": named(momentum, "momentum"),
            "dampening": float(dampening),
            "weight_decay": named(weight_decay, "weight_decay"),
            "nesterov": bool(nesterov),
        }
        super().__init__(params, defaults, kernels=kernels)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        slots = self.moments(master, "momentum_buffer") if group["momentum"] else ()
        return Rule("sgd_step", slots)

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "lr": float(group["lr"]),
            "momentum": group["momentum"],
            "dampening": group["dampening"],
            "weight_decay": group["weight_decay"],
            "nesterov": group["nesterov"],
        }
