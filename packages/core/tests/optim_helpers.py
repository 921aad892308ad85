"""What several optimizer tests need: pieces as views of flat buffers, and a registry of the core's own components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dsx.builtin import optimizers, schedules
from dsx.kernels import reference
from dsx.optim.adagrad import Adagrad
from dsx.optim.adam import Adam, AdamW
from dsx.optim.lamb import Lamb
from dsx.optim.lion import Lion
from dsx.optim.muon import Muon
from dsx.optim.piece import Piece
from dsx.optim.sgd import SGD
from dsx.plugin.types import Kind


@dataclass
class Section:
    """A section of the configuration that chooses a component."""

    type: str
    params: dict[str, Any] = field(default_factory=dict)


class OwnComponents:
    """A registry of what the core itself offers."""

    def get(self, kind: Kind[Any], name: str) -> Any:
        for component in (*optimizers.components(), *schedules.components()):
            known = [known.lower() for known in (component.name, *component.aliases)]
            if component.kind is kind and name.lower() in known:
                assert isinstance(component.load, str)
                module, _, attribute = component.load.partition(":")
                return getattr(import_module(module), attribute)
        raise LookupError(name)

    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]:
        return reference(operation)


class Bucket:
    """Parameters of these shapes next to each other in memory, with gradients likewise, as a driver lays them out."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        publish: torch.dtype | None = None,
    ) -> None:
        self.shapes = list(shapes)
        self.numel = sum(prod(shape) for shape in shapes)
        generator = torch.Generator().manual_seed(seed)
        self.flat = torch.randn(self.numel, generator=generator).to(dtype)
        self.grad = torch.randn(self.numel, generator=generator)
        self.out = None if publish is None else torch.zeros(self.numel, dtype=publish)
        self.masters = [nn.Parameter(view) for view in self.views(self.flat)]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameters' parts of a flat tensor."""
        found, at = [], 0
        for shape in self.shapes:
            found.append(flat[at : at + prod(shape)].view(shape))
            at += prod(shape)
        return found

    def pieces(self, missing: Sequence[int] = ()) -> list[Piece]:
        """Fresh pieces; those whose index is missing have no gradient."""
        outs = [None] * len(self.shapes) if self.out is None else self.views(self.out)
        grads = self.views(self.grad)
        return [
            Piece(f"p{i}", master, None if i in missing else grads[i], outs[i]) for i, master in enumerate(self.masters)
        ]

    def copies(self) -> list[nn.Parameter]:
        """Independent parameters with the same values, for a reference optimizer."""
        return [nn.Parameter(master.detach().float().clone()) for master in self.masters]


class Counting:
    """Kernels that count their calls: a mapping from operation to the reference."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]:
        def call(shard: Tensor, *args: Any, **options: Any) -> None:
            self.calls.append((operation, shard.numel()))
            reference(operation)(shard, *args, **options)

        return call


Make = Callable[..., Any]

PAIRS: dict[str, tuple[Make, Make]] = {
    "adamw": (
        lambda p, **k: AdamW(p, lr=0.1, eps=1e-6, weight_decay=0.1, **k),
        lambda p: torch.optim.AdamW(p, lr=0.1, eps=1e-6, weight_decay=0.1),
    ),
    "adam_l2": (
        lambda p, **k: Adam(p, lr=0.1, eps=1e-6, weight_decay=0.1, adam_w_mode=False, **k),
        lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-6, weight_decay=0.1),
    ),
    "adam": (
        lambda p, **k: Adam(p, lr=0.1, eps=1e-6, weight_decay=0.1, **k),
        lambda p: torch.optim.AdamW(p, lr=0.1, eps=1e-6, weight_decay=0.1),
    ),
    "sgd": (
        lambda p, **k: SGD(p, lr=0.1, weight_decay=0.1, **k),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    ),
    "momentum": (
        lambda p, **k: SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1, **k),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    ),
    "nesterov": (
        lambda p, **k: SGD(p, lr=0.1, momentum=0.9, nesterov=True, **k),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adagrad": (
        lambda p, **k: Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, **k),
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5),
    ),
}

OTHERS: dict[str, Make] = {
    "lion": lambda p, **k: Lion(p, lr=0.01, weight_decay=0.1, **k),
    "lamb": lambda p, **k: Lamb(p, lr=0.01, weight_decay=0.1, **k),
    "muon": lambda p, **k: Muon(p, lr=0.01, weight_decay=0.1, **k),
}
EVERY: dict[str, Make] = {**{name: pair[0] for name, pair in PAIRS.items()}, **OTHERS}


def close(found: list[nn.Parameter], wanted: list[nn.Parameter]) -> None:
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.detach(), w.detach(), rtol=1e-6, atol=1e-6)
