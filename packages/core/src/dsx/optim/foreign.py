"""Any torch optimizer, driven by pieces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dsx.errors import EngineError
from dsx.optim.piece import Piece

_TENSORS = {
    torch.optim.ASGD: 1,
    torch.optim.Adadelta: 2,
    torch.optim.Adagrad: 1,
    torch.optim.Adam: 2,
    torch.optim.AdamW: 2,
    torch.optim.Adamax: 2,
    torch.optim.NAdam: 2,
    torch.optim.RAdam: 2,
    torch.optim.RMSprop: 1,
    torch.optim.Rprop: 2,
    torch.optim.SGD: 0,
}
"""How many tensors torch's element-wise optimizers keep for a parameter, before options that add some."""

_OPTIONAL = ("amsgrad", "centered", "momentum")
"""Settings of theirs that add one tensor each."""

ELEMENTWISE = frozenset(_TENSORS)
"""Torch's optimizers that treat each element alone, so that any range of a parameter can be updated by itself."""


class ForeignOptimizer:
    """A torch optimizer as engines call it: the same ``update`` as ``dsx.optim.base.Optimizer``.

    The inner optimizer's groups hold the masters. Another class than torch's element-wise ones is given whole
    parameters, unless it says ``ownership = "element"`` itself. Optimizers that need a closure are refused.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        _refuse(inner)
        self.inner = inner
        self.driven = False
        """Whether the inner optimizer's step is ours, not a user's."""
        said = getattr(type(inner), "ownership", None)
        known = type(inner) in ELEMENTWISE
        self.ownership: Literal["element", "parameter"] = "element" if known or said == "element" else "parameter"

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.inner.defaults

    @property
    def state_bytes_per_element(self) -> float:
        """Bytes of state for each element of the parameters: known for torch's classes, counted for others."""
        groups = [group for group in self.param_groups if any(p.numel() for p in group["params"])]
        sizes = [sum(p.numel() for p in group["params"]) for group in groups]
        if not sizes:
            return 0.0
        kept = _TENSORS.get(type(self.inner))
        if kept is None:
            counted = sum(_bytes(value) for state in self.state.values() for value in state.values())
            return float(counted / sum(sizes))
        counts = [kept + sum(bool(group.get(option)) for option in _OPTIONAL) for group in groups]
        itemsize = groups[0]["params"][0].element_size()
        return float(itemsize * sum(c * size for c, size in zip(counts, sizes, strict=True)) / sum(sizes))

    @torch.no_grad()
    def update(self, pieces: Sequence[Piece], *, factor: float = 1.0) -> None:
        """Update each piece that has a gradient by ``factor * grad``, and write its ``publish`` copy.

        A gradient in the master's dtype is multiplied in place, to spare a copy. Parameters outside ``pieces`` are
        not touched. Afterwards no master has a ``grad``.
        """
        self._clear()
        for piece in pieces:
            if piece.grad is not None and piece.master.numel():  # torch's Adafactor divides by a size of 0
                grad = piece.grad.detach().to(piece.master.dtype)
                piece.master.grad = grad if factor == 1.0 else grad.mul_(factor)
        self._drive()
        for piece in pieces:
            if piece.grad is not None and piece.publish is not None:
                piece.publish.copy_(piece.master)
        self._clear()

    @torch.no_grad()
    def init_state(self, pieces: Sequence[Piece]) -> None:
        """Make the state of pieces that have none, as a step on zero gradients leaves it; weights do not change.

        For loading a checkpoint, which then fills it. Counters stand at 0 afterwards, as before any step.
        """
        new = [piece for piece in pieces if piece.master.numel() and not self.inner.state.get(piece.master)]
        if not new:
            return
        self._clear()
        weights = [piece.master.detach().clone() for piece in new]
        decays = [group.get("weight_decay") for group in self.param_groups]
        for piece in new:
            piece.master.grad = torch.zeros_like(piece.master)
        for group in self.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        self._drive()
        for group, decay in zip(self.param_groups, decays, strict=True):
            if "weight_decay" in group:
                group["weight_decay"] = decay
        for piece, before in zip(new, weights, strict=True):
            piece.master.copy_(before)
            _rewind(self.inner.state.get(piece.master) or {})
        self._clear()

    def _drive(self) -> None:
        self.driven = True
        try:
            self.inner.step()
        finally:
            self.driven = False

    def _clear(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """The inner optimizer's own step, outside any engine."""
        return self.inner.step() if closure is None else self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.inner.add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)


def _refuse(inner: torch.optim.Optimizer) -> None:
    name = type(inner).__name__
    closure = inspect.signature(inner.step).parameters.get("closure")
    if isinstance(inner, torch.optim.LBFGS) or (closure is not None and closure.default is inspect.Parameter.empty):
        raise EngineError(
            f"{name} evaluates the model again within its step (a closure), which an engine cannot do: "
            "use another optimizer, or call it on the module without an engine"
        )
    if isinstance(inner, torch.optim.SparseAdam):
        raise EngineError("SparseAdam takes sparse gradients, and an engine's are dense: use Adam")


def _rewind(state: dict[str, Any]) -> None:
    """Counters back to their beginning, after a step on zero gradients."""
    for key, start in (("step", 0), ("mu_product", 1)):
        value = state.get(key)
        if isinstance(value, Tensor):
            value.fill_(start)
        elif value is not None:
            state[key] = start


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) and value.dim() else 0
