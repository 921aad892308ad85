"""A GPT that reads and writes bytes: about 11 million parameters at its usual shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256
    """The longest sequence it reads."""
    vocabulary: int = 256


class Linear(nn.Linear):
    """A linear layer that starts small. Its start is its own affair, so it can be drawn after sharding too."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """An embedding that starts small."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inward = Linear(shape.width, 3 * shape.width)
        self.outward = Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.inward(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.outward(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what comes in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_norm = nn.LayerNorm(shape.width)
        self.feed = nn.Sequential(Linear(shape.width, 4 * shape.width), nn.GELU(), Linear(4 * shape.width, shape.width))

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = x + self.attention(self.attention_norm(x))
        fed: Tensor = attended + self.feed(self.feed_norm(attended))
        return fed


class GPT(nn.Module):
    """Gives the logits of the next byte; or, told the next bytes, the mean cross-entropy in nats."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.bytes = Embedding(shape.vocabulary, shape.width)
        self.places = Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """``x``, ``y``: (batch, length) int64. Logits are (batch, length, vocabulary)."""
        hidden = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return logits if y is None else F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


@torch.no_grad()
def generate(model: GPT, prompt: bytes, count: int, *, temperature: float = 0.8, seed: int = 0) -> bytes:
    """``count`` bytes that the model writes after the prompt."""
    device = model.head.weight.device
    dice = torch.Generator().manual_seed(seed)
    text = list(prompt)
    for _ in range(count):
        seen = torch.tensor([text[-model.shape.context :]], device=device)
        chances = torch.softmax(model(seen)[0, -1].float().cpu() / temperature, dim=-1)
        text.append(int(torch.multinomial(chances, 1, generator=dice)))
    return bytes(text[len(prompt) :])
