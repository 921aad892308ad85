"""A small model that has every kind of parameter that ever broke a trainer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, WIDTH, MICRO = 5, 7, 3


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Awkward(nn.Module):
    """Gives a scalar loss for (inputs, targets).

    It has a module used twice, tied weights, a frozen parameter, an unused module, an empty and a zero-dimensional
    parameter, one with three dims, and sizes that no number of ranks divides. All is drawn from one seed.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.enter = nn.Linear(FEATURES, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.twice = nn.Linear(WIDTH, WIDTH)
            self.tied = nn.Linear(WIDTH, WIDTH)
            self.tied.weight = self.twice.weight
            self.unused = nn.Linear(3, 2)
            self.stack = nn.Parameter(0.3 * torch.randn(2, WIDTH, WIDTH))
            self.empty = nn.Parameter(torch.empty(0, 3))
            self.scale = nn.Parameter(torch.ones(()))
            self.frozen = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH), requires_grad=False)
            self.leave = nn.Linear(WIDTH, 2)

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        """One block; tests override it to recompute."""
        out: Tensor = block(x)
        return out

    def predict(self, x: Tensor) -> Tensor:
        """The outputs that the loss compares."""
        x = torch.tanh(self.twice(torch.tanh(self.enter(x))))
        for block in self.blocks:
            x = self.run(block, x)
        x = x + torch.einsum("bi,kij->bj", x, self.stack)
        x = torch.tanh(self.twice(x) + self.tied(x)) * self.frozen
        out: Tensor = self.leave(x) * self.scale
        return out

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.predict(x).float(), y.float())


def awkward_batch(update: int, turn: int, rank: int) -> tuple[Tensor, Tensor]:
    """What a rank sees in one turn of one update: (inputs, targets) for :class:`Awkward`."""
    dice = torch.Generator().manual_seed(10_007 * update + 101 * turn + rank)
    return torch.randn(MICRO, FEATURES, generator=dice), torch.randn(MICRO, 2, generator=dice)
