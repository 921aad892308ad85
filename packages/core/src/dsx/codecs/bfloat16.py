"""``bf16``: half the bytes of fp32, with its range and 8 bits of precision."""

from __future__ import annotations

import torch
from torch import Tensor

from dsx.codecs.steps import steps


class Bf16:
    """Casts to bfloat16 and back: exact for bf16 values; inf and nan stay what they are."""

    name = "bf16"

    def packed_bytes(self, numel: int) -> int:
        """Two for each number."""
        return 2 * numel

    def encode(self, values: Tensor, packed: Tensor) -> None:
        """Round each number to the nearest bfloat16."""
        for start, stop in steps(values):
            packed[2 * start : 2 * stop].copy_(values[start:stop].to(torch.bfloat16).view(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        """Widen each number."""
        for start, stop in steps(values):
            # a copy begins at an even address, as bfloat16 must; packed may not
            values[start:stop].copy_(packed[2 * start : 2 * stop].clone().view(torch.bfloat16))
