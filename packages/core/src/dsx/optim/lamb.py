"""LAMB."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dsx.errors import ConfigError
from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named, pair_of_betas
from dsx.optim.runs import Rule


class Lamb(Optimizer):
    """LAMB: Adam's step, scaled for each parameter by the ratio of the norms of weights and step. arXiv:1904.00962.

    The ratio is held within [min_coeff, max_coeff]. It needs whole parameters.
    """

    ownership: ClassVar[Literal["element", "parameter"]] = "parameter"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        eps_inside_sqrt: bool = False,
        amsgrad: bool = False,
        state_dtype: torch.dtype | str | None = None,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        if amsgrad:
            raise ConfigError("optimizer.params.amsgrad is true, which LAMB has not: leave it out")
        if not 0 < min_coeff <= max_coeff:
            raise ConfigError(
                f"optimizer.params.min_coeff and max_coeff are {min_coeff} and {max_coeff}, wanted 0 < min <= max"
            )
        defaults = {
            "lr": named(lr, "lr"),
            "betas": pair_of_betas(betas),
            "eps": named(eps, "eps"),
            "weight_decay": named(weight_decay, "weight_decay"),
            "bias_correction": bool(bias_correction),
            "max_coeff": float(max_coeff),
            "min_coeff": float(min_coeff),
            "eps_inside_sqrt": bool(eps_inside_sqrt),
        }
        super().__init__(params, defaults, kernels=kernels, state_dtype=state_dtype)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        return Rule("lamb_step", self.moments(master, "exp_avg", "exp_avg_sq"), merge=False)

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        keys = ("eps", "weight_decay", "bias_correction", "max_coeff", "min_coeff", "eps_inside_sqrt")
        return {
            "step": step,
            "lr": float(group["lr"]),
            "betas": tuple(group["betas"]),
            **{key: group[key] for key in keys},
        }
