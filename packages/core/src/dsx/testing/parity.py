"""The law that every engine keeps: it trains as plain PyTorch does on one process."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from dsx.engine.engine import Engine

BatchOf = Callable[[int, int, int], Sequence[Any]]
"""What a rank sees: (update, turn, rank) -> the model's arguments. The model gives a scalar loss for them."""


@dataclass(frozen=True, slots=True)
class Course:
    """What can be seen of a training: one loss and gradient norm an update, and the last weights."""

    losses: tuple[float, ...]
    """Means over all micro-batches of all ranks."""
    norms: tuple[float, ...]
    """Of the mean gradient, before clipping."""
    weights: Mapping[str, Tensor]
    """fp32, by name."""

    def apart(self, other: Course) -> float:
        """The largest difference of any number of both; infinite where one is not a number or a name is missing."""
        pairs = [*zip(self.losses, other.losses, strict=True), *zip(self.norms, other.norms, strict=True)]
        found = [abs(a - b) for a, b in pairs]
        found.append(weights_apart(self.weights, other.weights))
        return math.inf if any(math.isnan(value) for value in found) else max(found)


def weights_apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of two sets of weights; infinite where names or shapes differ, or all is not finite."""
    if set(one) != set(other) or any(one[name].shape != other[name].shape for name in one):
        return math.inf
    gaps = [float((one[name].float() - other[name].float()).abs().max()) for name in one if one[name].numel()]
    return max((gap if math.isfinite(gap) else math.inf for gap in gaps), default=0.0)


def plain(
    model: nn.Module,
    batch: BatchOf,
    *,
    optimizer: torch.optim.Optimizer,
    updates: int,
    accumulation: int = 1,
    world: int = 1,
    divisor: int | None = None,
    clip: float = 0.0,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> Course:
    """Train by plain PyTorch: one process sees every rank's micro-batches and steps on their mean gradient.

    ``divisor`` is by what the sum over them is divided, if not by their number. With a low ``dtype``, forward and
    backward run on a copy of the fp32 weights, with the loss multiplied by ``scale``.
    """
    losses, norms = [], []
    divisor = accumulation * world if divisor is None else divisor
    for update in range(updates):
        reader = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
        sums: dict[str, Tensor] = {}
        total = 0.0
        for turn in range(accumulation):
            for rank in range(world):
                loss = reader(*(_in_dtype(value, dtype) for value in batch(update, turn, rank)))
                (loss * scale).backward()
                total += float(loss.detach())
                _take_gradients(reader, sums)
        for name, master in model.named_parameters():
            master.grad = sums[name] / (scale * divisor) if name in sums else None
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        if clip:
            torch.nn.utils.clip_grads_with_norm_(list(model.parameters()), clip, norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / (accumulation * world))
        norms.append(float(norm))
    weights = {name: value.detach().float().clone() for name, value in model.state_dict().items()}
    return Course(tuple(losses), tuple(norms), weights)


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _take_gradients(model: nn.Module, sums: dict[str, Tensor]) -> None:
    """Add the parameters' gradients to fp32 sums by name, and clear them."""
    for name, param in model.named_parameters():
        if param.grad is not None:
            part = param.grad.float()
            sums[name] = sums[name] + part if name in sums else part
            param.grad = None


def steered(engine: Engine, batch: BatchOf, *, updates: int, plain_backward: bool = False) -> Course:
    """Train by an engine, with the loop that users write; with ``plain_backward``, by ``loss.backward()``."""
    losses, norms = [], []
    for update in range(updates):
        total = torch.zeros(())
        for turn in range(engine.gradient_accumulation_steps()):
            loss = engine(*batch(update, turn, engine.data_group.rank))
            if plain_backward:
                loss.backward()
            else:
                engine.backward(loss)
            engine.step()
            total += loss.detach().float().cpu()
        engine.data_group.all_reduce(total, site="losses of a test")
        losses.append(float(total) / (engine.gradient_accumulation_steps() * engine.data_group.size))
        norm = engine.get_global_grad_norm()
        norms.append(math.nan if norm is None else norm)
    return Course(tuple(losses), tuple(norms), engine.full_state_dict())
