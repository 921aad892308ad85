"""Laws of an optimizer under a driver: it is given pieces, range by range or parameter by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dsx.optim.base import Optimizer
from dsx.optim.make import make_optimizer, ownership_of
from dsx.optim.piece import Piece
from dsx.testing.optimizer_steps import Field, built, near, same_bits
from dsx.testing.subjects import Subject
from dsx.testing.verdict import hold

CUT = 4
"""Where a parameter is cut in two, in elements."""

UPDATES = 3


def check_pieces(subject: Subject) -> None:
    """What is updated in parts, in several calls, is what is updated whole."""
    whole = _Pieces(subject, cut=False)
    whole.update(calls=1)
    if ownership_of(subject.factory) == "element":
        cut = _Pieces(subject, cut=True)
        cut.update(calls=1)
        what = "is updated otherwise in ranges than whole, and ownership is said to be by element"
        near(cut.weights(), whole.weights(), cut.names, what)
        cut = _Pieces(subject, cut=True)
        cut.update(calls=2)
        near(cut.weights(), whole.weights(), cut.names, "is updated otherwise when its ranges come in two calls")
    parts = _Pieces(subject, cut=False)
    parts.update(calls=len(parts.names))
    near(
        parts.weights(), whole.weights(), parts.names, "is updated otherwise when each parameter comes in its own call"
    )


def check_factor(subject: Subject) -> None:
    """A factor multiplies gradients, ``publish`` gets the new weights, and dsx's own optimizers only read gradients."""
    wanted, found = _Pieces(subject, cut=False), _Pieces(subject, cut=False, publish=torch.bfloat16)
    wanted.update(calls=1, multiplied=0.25)
    found.update(calls=1, factor=0.25)
    near(found.weights(), wanted.weights(), found.names, "is updated otherwise by factor=0.25 than by a quarter of it")
    for piece in found.pieces:
        hold(piece.publish is not None, f"piece {piece.name} lost its place to publish")
        if piece.publish is not None:
            same_bits([piece.publish], [piece.master.detach().bfloat16()], [piece.name], "is not what was published")


class _Pieces:
    """The parameters of a field as a driver holds them, cut in two or whole."""

    def __init__(self, subject: Subject, *, cut: bool, publish: torch.dtype | None = None) -> None:
        field = Field()
        self.names, self.cut = field.names, cut
        self.targets = field.targets
        self.shapes = [p.shape for p in field.params]
        self.pieces: list[Piece] = []
        for name, p in zip(field.names, field.params, strict=True):
            for part in self._parts(p.detach().clone()):
                out = None if publish is None else torch.zeros(part.shape, dtype=publish)
                self.pieces.append(Piece(name, nn.Parameter(part), None, out))
        groups = [{"params": [p.master for p in self.pieces], "param_names": [p.name for p in self.pieces]}]
        spec: Any = lambda given: built(subject, given)  # noqa: E731  (a factory, as a user gives one)
        self.optimizer = make_optimizer(spec, groups, registry=subject.registry)

    def _parts(self, tensor: Tensor) -> Sequence[Tensor]:
        flat = tensor.reshape(-1)
        return (flat[:CUT], flat[CUT:]) if self.cut else (tensor,)

    def update(self, *, calls: int, factor: float = 1.0, multiplied: float = 1.0) -> None:
        """Some updates, each in so many calls, as buckets come one after the other."""
        for _ in range(UPDATES):
            self._give_gradients(multiplied)
            given = [piece.grad.clone() for piece in self.pieces if piece.grad is not None]
            for turn in range(calls):
                self.optimizer.update(self.pieces[turn::calls], factor=factor)
            if isinstance(self.optimizer, Optimizer):
                kept = [piece.grad for piece in self.pieces if piece.grad is not None]
                same_bits(kept, given, [p.name for p in self.pieces], "has another gradient after the update")

    def _give_gradients(self, multiplied: float) -> None:
        """Gradients in allocations of their own, that do not depend on the cut."""
        targets = [part for target in self.targets for part in self._parts(target)]
        for piece, target in zip(self.pieces, targets, strict=True):
            piece.grad = (piece.master.detach() - target).mul_(multiplied)

    def weights(self) -> list[Tensor]:
        """Whole parameters."""
        if not self.cut:
            return [piece.master.detach().clone() for piece in self.pieces]
        pairs = zip(self.pieces[::2], self.pieces[1::2], self.shapes, strict=True)
        return [torch.cat((one.master.detach(), two.master.detach())).view(shape) for one, two, shape in pairs]
