"""The optimizer: which state it keeps, and with which settings its kernel is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from dsx.optim.base import Group, Kernels, KernelSource, Optimizer
from dsx.optim.parameters import named, pair_of_betas
from dsx.optim.runs import Rule

from acme_sparse_adam import OPERATION
from acme_sparse_adam.kernels.masked import masked_step


class SparseAdam(Optimizer):
    """Adam that updates only elements whose gradient is not zero; all others keep weight and moments.

    For embeddings: rows that no sample used do not move by an old momentum. It is torch.optim.SparseAdam for dense
    gradients, so it also trains under data parallelism and sharding. Bias correction counts every update of the
    parameter, not those of each element.
    """

    ownership = "element"
    references: ClassVar[Mapping[str, Callable[..., None]]] = {OPERATION: masked_step}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        state_dtype: torch.dtype | str | None = None,
        kernels: KernelSource | Kernels | None = None,
    ) -> None:
        defaults = {"lr": named(lr, "lr"), "betas": pair_of_betas(betas), "eps": named(eps, "eps")}
        super().__init__(params, defaults, kernels=kernels, state_dtype=state_dtype)

    def rule(self, group: Group, name: str, master: torch.Tensor) -> Rule:
        """One operation and two moments for each parameter."""
        return Rule(OPERATION, self.moments(master, "exp_avg", "exp_avg_sq"))

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        """What the kernel is called with besides tensors."""
        return {"step": step, "lr": float(group["lr"]), "betas": tuple(group["betas"]), "eps": group["eps"]}
