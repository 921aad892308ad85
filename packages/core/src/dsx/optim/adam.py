"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dsx.errors import ConfigError
from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named, pair_of_betas
from dsx.optim.runs import Rule


class Adam(Optimizer):
    """Adam with AdamW's decoupled weight decay, unless ``adam_w_mode`` is False: as DeepSpeed's ``"Adam"``.

    ``state_dtype`` is that of both moments (fp32 or bf16; ``fp32_optimizer_states=False`` means bf16); the arithmetic
    is fp32 either way. ``torch_adam`` keeps to the torch reference of the kernel. arXiv:1412.6980.
    """

    ownership: ClassVar[Literal["element", "parameter"]] = "element"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        adam_w_mode: bool = True,
        bias_correction: bool = True,
        amsgrad: bool = False,
        torch_adam: bool = False,
        fp32_optimizer_states: bool = True,
        state_dtype: torch.dtype | str | None = None,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        if amsgrad:
            raise ConfigError("optimizer.params.amsgrad is true, which dsx's Adam has not: use the type torch.AdamW")
        if state_dtype is None and not fp32_optimizer_states:
            state_dtype = torch.bfloat16
        defaults = {
            "lr": named(lr, "lr"),
            "betas": pair_of_betas(betas),
            "eps": named(eps, "eps"),
            "weight_decay": named(weight_decay, "weight_decay"),
            "adam_w_mode": bool(adam_w_mode),
            "bias_correction": bool(bias_correction),
        }
        super().__init__(params, defaults, kernels={} if torch_adam else kernels, state_dtype=state_dtype)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        return Rule("adam_step", self.moments(master, "exp_avg", "exp_avg_sq"))

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        return adam_arguments(group, step=step, lr=float(group["lr"]))


class AdamW(Adam):
    """Adam with decoupled weight decay, 0.01 by default as in torch. arXiv:1711.05101."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        adam_w_mode: bool = True,
        bias_correction: bool = True,
        amsgrad: bool = False,
        torch_adam: bool = False,
        fp32_optimizer_states: bool = True,
        state_dtype: torch.dtype | str | None = None,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        if not adam_w_mode:
            raise ConfigError('optimizer.params.adam_w_mode is false, but the type is AdamW: give the type "Adam"')
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            bias_correction=bias_correction,
            amsgrad=amsgrad,
            torch_adam=torch_adam,
            fp32_optimizer_states=fp32_optimizer_states,
            state_dtype=state_dtype,
            kernels=kernels,
        )


def adam_arguments(group: Group, *, step: int, lr: float) -> dict[str, Any]:
    """The keyword arguments of ``adam_step`` from a group's settings."""
    return {
        "step": step,
        "lr": lr,
        "betas": tuple(group["betas"]),
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
        "decoupled": group["adam_w_mode"],
        "bias_correction": group["bias_correction"],
    }
