"""Real text that every machine has: the sources of Python's own standard library, as bytes."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "__pycache__"}
KEPT_FOR_EVALUATION = 20
"""One window in this many is never trained on."""


def library_sources(*, most: int = 8 << 20) -> bytes:
    """The library's modules, folder by folder in the order of their names; at most so many bytes."""
    text = bytearray()
    for folder, inner, files in os.walk(sysconfig.get_path("stdlib")):
        inner[:] = sorted(set(inner) - LEFT_OUT)
        for name in sorted(files):
            if name.endswith(".py"):
                text += Path(folder, name).read_bytes()
        if len(text) >= most:
            break
    return bytes(text[:most])


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """A text cut into windows that do not overlap; the target of each byte is the byte after it."""

    def __init__(self, text: bytes, *, length: int, evaluation: bool = False) -> None:
        self.data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.length = length
        windows = range((len(text) - 1) // length)
        self.starts = [n * length for n in windows if (n % KEPT_FOR_EVALUATION == 0) == evaluation]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self.starts[index]
        window = self.data[start : start + self.length + 1].long()
        return window[:-1], window[1:]
