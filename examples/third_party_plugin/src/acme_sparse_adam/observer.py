"""Tells which share of the model an update touches."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from dsx.engine.observers import Observer
from dsx.observe.tell import is_due, tell

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


class TouchedObserver(Observer):
    """Every so many updates, counts the gradients that are not zero; rank 0 prints one line.

    Between two lines it does nothing. With any optimizer, so that one can look before changing it. Counts what this
    rank updates and adds up over the data-parallel ranks: a collective, so every rank has this observer.
    """

    def __init__(self, every: int, parameters: tuple[str, ...] = ("*",)) -> None:
        self.every = every
        self.parameters = parameters
        self.share: float | None = None
        """At the last line; not a number where no parameter has a gradient."""

    def before_step(self, engine: Engine) -> None:
        """Count, where it is time. Gradients are complete, and not yet applied."""
        if not is_due(engine.global_steps + 1, self.every):
            return
        touched, elements = self._count(engine)
        self.share = touched / elements if elements else float("nan")
        if engine.plan.world.rank == 0:
            tell(f"step {engine.global_steps + 1} | {100 * self.share:.2f} % of the gradients' elements are not zero")

    def _count(self, engine: Engine) -> list[int]:
        counted = torch.zeros(2, dtype=torch.int64, device=engine.device)
        for name, parameter in engine.named_parameters():
            if not parameter.requires_grad or not any(fnmatchcase(name, wanted) for wanted in self.parameters):
                continue
            gradient = engine.local_gradient(name)
            if gradient is not None:
                counted[0] += gradient.count_nonzero()
                counted[1] += gradient.numel()
        engine.data_group.all_reduce(counted, site="share of elements touched")
        found: list[int] = counted.tolist()
        return found
