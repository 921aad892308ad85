"""A model of two embeddings, of which a batch uses a few rows, and what plain PyTorch makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH, BATCH = 50, 6, 4
LR = 0.05


class Embeddings(nn.Module):
    """Scores pairs of a user and an item by the product of their rows."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.users = nn.Embedding(ROWS, WIDTH, sparse=sparse)
            self.items = nn.Embedding(ROWS, WIDTH, sparse=sparse)

    def forward(self, users: Tensor, items: Tensor, wanted: Tensor) -> Tensor:
        score = (self.users(users) * self.items(items)).sum(1)
        loss: Tensor = (score - wanted).square().mean()
        return loss


def batch(update: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a rank sees in an update: users, items, and the scores that are wanted."""
    dice = torch.Generator().manual_seed(100 * update + rank)
    users, items = torch.randint(ROWS, (2, BATCH), generator=dice)
    return users, items, torch.randn(BATCH, generator=dice)


def plainly_trained(*, updates: int, world: int = 1) -> Mapping[str, Tensor]:
    """Weights of plain PyTorch: sparse gradients and torch's SparseAdam, one process that sees every rank's batch."""
    model = Embeddings(sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=LR)
    for update in range(updates):
        optimizer.zero_grad()
        for rank in range(world):
            (model(*batch(update, rank)) / world).backward()
        optimizer.step()
    return model.state_dict()


def settings(optimizer: str, **more: Any) -> dict[str, Any]:
    """A configuration that trains these embeddings."""
    chosen = {"type": optimizer, "params": {"lr": LR}}
    return {"train_micro_batch_size_per_gpu": BATCH, "optimizer": chosen, **more}
