"""Checkpoints of known content in any store: written, and found again or told of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsx.checkpoint.load import load
from dsx.checkpoint.save import save
from dsx.testing.threads import Holder, every, run_threads, single

NOTHING = 0.0
"""What tensors hold before they are filled."""


def whole(value: float) -> dict[str, Tensor]:
    """Tensors that tell their value; of several shapes and dtypes, one of them empty."""
    dice = torch.Generator().manual_seed(int(value))
    return {
        "w": torch.full((3, 5), value) + torch.randn(3, 5, generator=dice),
        "b": torch.full((7,), value),
        "half": torch.full((4,), value, dtype=torch.bfloat16),
        "none": torch.empty(0, 2),
    }


def write(store: Any, *, tag: str, value: float, latest: bool = True, ranks: int = 1) -> None:
    """Save this value under a tag, by so many ranks; raises what ``save`` raises."""

    def rank(group: Any) -> None:
        parts = [Holder(whole(value), rank=group.rank, size=group.size).part()]
        save("unused", tag=tag, parts=parts, group=group, client_state={"v": value}, latest=latest, store=store)

    if ranks == 1:
        rank(single())
    else:
        every(run_threads(ranks, rank))


def read(store: Any, *, tag: str | None = None, kept: Holder | None = None) -> float:
    """The value under a tag, by default the latest; raises what ``load`` raises.

    Weights and client state must be of one save, bit for bit. kept: the holder to fill.
    """
    holder = Holder(whole(NOTHING), rank=0, size=1) if kept is None else kept
    alone: Any = single()
    loaded = load("unused", tag=tag, parts=[holder.part()], group=alone, store=store)
    value = float(loaded.client_state["v"])
    if not holder.equals(whole(value)):
        raise AssertionError(f"weights and client state of {loaded.tag!r} are of different saves, or not bit-equal")
    return value


def files_below(folder: Path) -> Mapping[str, Path]:
    """Files that a store keeps in its root, by relative path."""
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
