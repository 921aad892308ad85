"""Adagrad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from torch import Tensor

from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named
from dsx.optim.runs import Rule, Slot, work_dtype_of


class Adagrad(Optimizer):
    """Adagrad with L2 weight decay, as torch's. Duchi et al., JMLR 12 (2011)."""

    ownership: ClassVar[Literal["element", "parameter"]] = "element"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        defaults = {
            "lr": named(lr, "lr"),
            "lr_decay": named(lr_decay, "lr_decay"),
            "weight_decay": named(weight_decay, "weight_decay"),
            "initial_accumulator_value": named(initial_accumulator_value, "initial_accumulator_value"),
            "eps": named(eps, "eps"),
        }
        super().__init__(params, defaults, kernels=kernels)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        slot = Slot("sum", work_dtype_of(master), fill=group["initial_accumulator_value"])
        return Rule("adagrad_step", (slot,))

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "lr": float(group["lr"]),
            "lr_decay": group["lr_decay"],
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
        }
