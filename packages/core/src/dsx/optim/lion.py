"""Lion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named, pair_of_betas
from dsx.optim.runs import Rule


class Lion(Optimizer):
    """Lion: steps by the sign of the momentum, with decoupled weight decay. arXiv:2302.06675."""

    ownership: ClassVar[Literal["element", "parameter"]] = "element"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        state_dtype: torch.dtype | str | None = None,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        defaults = {
            "lr": named(lr, "lr"),
            "betas": pair_of_betas(betas),
            "weight_decay": named(weight_decay, "weight_decay"),
        }
        super().__init__(params, defaults, kernels=kernels, state_dtype=state_dtype)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        return Rule("lion_step", self.moments(master, "exp_avg"))

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        return {"lr": float(group["lr"]), "betas": tuple(group["betas"]), "weight_decay": group["weight_decay"]}
