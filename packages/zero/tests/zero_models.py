"""Tiny models of awkward kinds, and one training loop, for the tests of ZeRO."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dsx

WIDTH = 6
BATCH = 4


class Mlp(nn.Module):
    """The tiny MLP of the cases, with a parameter nobody uses, one without elements and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 16)
        self.second = nn.Linear(16, WIDTH)
        self.unused = nn.Linear(5, 3)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.second(F.relu(self.first(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Blocks(nn.Module):
    """A stack of blocks, with its own weight held in a variable around them."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gain = self.gain
        for block in self.blocks:
            x = block(x * gain)
        return self.head(x) * gain


class Recomputed(Blocks):
    """The same with blocks that backward computes again."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        x = (x * self.gain).requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class RecomputedReentrant(Recomputed):
    reentrant = True


class Tied(nn.Module):
    """A parent that reads its child's weight, before the child has run and after."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.middle = Block()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.embed.weight
        x = self.middle(self.embed(x))
        return F.linear(x, weight) + F.linear(x, self.embed.weight.flip(0))


class SameParameter(nn.Module):
    """Two modules with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = Block()
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Gives(nn.Module):
    """A module whose result is its bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self) -> Tensor:
        return self.weight


class Given(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gives = Gives()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gives()
        return F.linear(self.block(x), weight)


class Twice(nn.Module):
    """A block that is used three times, once within another."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.other = nn.Sequential(nn.Linear(WIDTH, WIDTH), self.block)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.other(self.block(x)))


class Lora(nn.Module):
    """Frozen layers with trained low-rank ones beside them, and a frozen layer behind that gradients pass."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.behind = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.base(x) + self.up(self.down(x))
        return torch.tanh(self.behind(self.norm(x)))


class Packed(nn.Module):
    """Three-dimensional packed weights, as experts have, and parameters in lists and dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.empty(3, WIDTH, 7))
        self.listed = nn.ParameterList(nn.Parameter(torch.randn(7, WIDTH) / 3) for _ in range(3))
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(WIDTH))})
        nn.init.normal_(self.packed, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.einsum("bi,eio->ebo", x, self.packed)
        return sum(F.relu(h) @ w for h, w in zip(hidden, self.listed, strict=True)) + self.named["bias"]


class Recurrent(nn.Module):
    """A module of torch that keeps its weights a second time in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x.unsqueeze(1).expand(-1, 3, -1).contiguous())[0][:, -1]


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        Mlp, Blocks, Recomputed, RecomputedReentrant, Tied, SameParameter, Given, Twice, Lora, Packed, Recurrent,
    )
}  # fmt: skip


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def settings(stage: int, *, zero: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A configuration of this stage in which nothing rests whole for being small."""
    section = {"stage": stage, "stage3_param_persistence_threshold": 0, **(zero or {})}
    basic = {"train_micro_batch_size_per_gpu": BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
    return {**basic, "comm_timeout": 20.0, "zero_optimization": section, **more}


def samples(update: int, micro: int = 0, *, of: int | None = None) -> tuple[Tensor, Tensor]:
    """One rank's inputs and targets."""
    which = rank() if of is None else of
    numbers = torch.Generator().manual_seed(1000 * update + 10 * micro + which)
    return torch.randn(BATCH, WIDTH, generator=numbers), torch.randn(BATCH, WIDTH, generator=numbers)


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs.float() - targets) ** 2).mean()


def make(kind: str, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind]()


def engine_of(model: nn.Module, config: Mapping[str, Any], **options: Any) -> dsx.Engine:
    return dsx.initialize(model=model, config=config, **options)[0]


def train(engine: dsx.Engine, updates: Sequence[int]) -> list[float]:
    """The loss of each of these updates, averaged over ranks and micro-batches."""
    losses = []
    for update in updates:
        total = torch.zeros(1)
        for micro in range(engine.gradient_accumulation_steps()):
            inputs, targets = samples(update, micro)
            loss = loss_of(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        engine.data_group.all_reduce(total, site="loss of the test")
        losses.append(float(total) / engine.gradient_accumulation_steps() / world())
    return losses


def train_plain(
    model: nn.Module, updates: Sequence[int], *, micros: int = 1, ranks: int | None = None
) -> tuple[list[float], dict[str, Tensor]]:
    """The same by torch alone on all ranks' data: losses, and the weights at the end."""
    ranks = world() if ranks is None else ranks
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.01)
    losses = []
    for update in updates:
        total = 0.0
        for micro in range(micros):
            for which in range(ranks):
                inputs, targets = samples(update, micro, of=which)
                loss = loss_of(model(inputs), targets) / (micros * ranks)
                loss.backward()
                total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two states of equal names; nan counts as infinite."""
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    found = 0.0
    for name, value in one.items():
        if value.numel():
            difference = float((value.float() - other[name].float()).abs().max())
            found = max(found, difference if difference == difference else float("inf"))
    return found
