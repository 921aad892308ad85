"""An optimizer: any ``torch.optim.Optimizer`` over the groups it is given, registered under a name.

Turned on by ``"optimizer": {"type": "signum", "params": {"lr": 1e-3}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from dsx.plugin import OPTIMIZER, Component, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-optimizer", api=1, summary="Signum: steps by the sign of the momentum")


class Signum(torch.optim.Optimizer):
    """Steps of one length, in the direction of the averaged gradient's sign. arXiv:1802.04434."""

    ownership = "element"
    """Each element is updated alone, so a rank may hold any flat range of a parameter."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg"].lerp_(param.grad, 1.0 - group["momentum"])
                param.sub_(state["exp_avg"].sign() * group["lr"])


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The optimizer, under its name."""
    yield Component(OPTIMIZER, "signum", load=lambda: Signum, summary="steps by the sign of the momentum")
