"""The default loop: an update is its micro-batches in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsx.errors import DataError, EngineError

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


class AccumulationLoop:
    """Forward and backward of each micro-batch, then one update."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def train_batch(self, data: Iterator[Any]) -> Tensor:
        """One update; gives the mean loss over its micro-batches and all data replicas."""
        engine = self.engine
        engine.train()
        total: Tensor | None = None
        for _ in range(engine.gradient_accumulation_steps()):
            loss = loss_of(feed(engine, _next(data, engine.gradient_accumulation_steps())))
            engine.backward(loss)
            engine.step()
            total = loss.detach().float() if total is None else total + loss.detach().float()
        return self._mean(total)

    def eval_batch(self, data: Iterator[Any], *, micro_batches: int | None = None) -> Tensor:
        """The mean loss over as many micro-batches as an update has, and all data replicas; nothing is kept."""
        engine = self.engine
        count = engine.gradient_accumulation_steps() if micro_batches is None else micro_batches
        training = engine.module.training
        engine.eval()
        total: Tensor | None = None
        try:
            with torch.no_grad():
                for _ in range(count):
                    loss = loss_of(feed(engine, _next(data, count))).float()
                    total = loss if total is None else total + loss
        finally:
            engine.train(training)
        return self._mean(total, count)

    def _mean(self, total: Tensor | None, count: int | None = None) -> Tensor:
        if total is None:
            raise DataError("no micro-batch was run: ask for at least one")
        mean = (total / (count or self.engine.gradient_accumulation_steps())).reshape(())
        group = self.engine.data_group
        if group.size > 1:
            mean = mean.clone()
            group.all_reduce(mean, site="mean loss")
            mean /= group.size
        return mean


def _next(data: Iterator[Any], wanted: int) -> Any:
    try:
        return next(data)
    except StopIteration:
        raise DataError(
            f"the data ended within an update, which takes {wanted} micro-batches: stop at a whole update, or wrap the "
            "loader in dsx.data.RepeatingLoader"
        ) from None


def feed(engine: Engine, batch: Any) -> Any:
    """Call the engine as the batch asks: a mapping by keyword, a tuple or list by position, else one argument."""
    if isinstance(batch, Mapping):
        return engine(**batch)
    if isinstance(batch, tuple | list):
        return engine(*batch)
    return engine(batch)


def loss_of(outputs: Any) -> Tensor:
    """The loss among a model's outputs: itself, its ``loss``, or the first of a tuple."""
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    elif not isinstance(outputs, Tensor):
        found = getattr(outputs, "loss", None)
        if found is None and isinstance(outputs, tuple | list) and outputs:
            found = outputs[0]
    if not isinstance(found, Tensor) or found.numel() != 1:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise EngineError(
            f"train_batch needs a loss from the model, found {shape}: return a scalar, an object with .loss, or a "
            "tuple that begins with it; or write the loop with engine(...), engine.backward(loss), engine.step()"
        )
    return found
