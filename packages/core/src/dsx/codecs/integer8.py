"""``int8``: a quarter of the bytes of fp32, and a 64th more for the scales of its blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from dsx.codecs.steps import steps

BLOCK = 256
"""Numbers that share a scale."""
LARGEST = 127
BAD = -128
"""The code of what is not finite."""
_SCALE_BYTES = 4


class Int8:
    """Symmetric integers by blocks of 256: each is rounded to the nearest of 255 values up to its block's largest.

    First come the fp32 scales of all blocks, then a byte for each number. What is not finite comes back as nan, in its
    place, and leaves its block's other numbers alone. Zero is exact.
    """

    name = "int8"

    def packed_bytes(self, numel: int) -> int:
        """One for each number and four for each block; the last block may be short."""
        return numel + _SCALE_BYTES * _blocks(numel)

    def encode(self, values: Tensor, packed: Tensor) -> None:
        """Scales and codes of each block."""
        head = _SCALE_BYTES * _blocks(values.numel())
        for start, stop in steps(values):
            scales, codes = _quantised(values[start:stop])
            first = start // BLOCK * _SCALE_BYTES
            packed[first : first + scales.nbytes].copy_(scales.view(torch.uint8))
            packed[head + start : head + stop].copy_(codes.view(torch.uint8)[: stop - start])

    def decode(self, packed: Tensor, values: Tensor) -> None:
        """Codes times scales."""
        head = _SCALE_BYTES * _blocks(values.numel())
        for start, stop in steps(values):
            first, last = start // BLOCK * _SCALE_BYTES, _blocks(stop) * _SCALE_BYTES
            scales = packed[first:last].clone().view(torch.float32)  # a copy is aligned, packed may not be
            wide = packed[head + start : head + stop].view(torch.int8).to(torch.float32)
            wide.add_((wide + LARGEST).clamp_(max=0.0).sqrt_())  # the root of -1 makes BAD a nan
            whole = wide.numel() // BLOCK * BLOCK
            wide[:whole].view(-1, BLOCK).mul_(scales[: whole // BLOCK, None])
            if whole < wide.numel():
                wide[whole:].mul_(scales[-1])
            values[start:stop].copy_(wide)


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK)


def _quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 scales by block, and int8 codes of whole blocks: the last is filled up with zeros.

    Arithmetic instead of masks throughout: comparisons take several times as long on a processor.
    """
    blocks = _blocks(values.numel())
    wide = torch.zeros(blocks * BLOCK, dtype=torch.float32, device=values.device)
    wide[: values.numel()].copy_(values)
    bad = (wide - wide).nan_to_num_(nan=BAD)  # inf - inf is nan; all other differences are 0
    rows = wide.nan_to_num_(0.0, 0.0, 0.0).view(blocks, BLOCK)
    scales = rows.abs().amax(1).div_(LARGEST)
    # A block of zeros has no scale to divide by; the smallest numbers' scale may have lost them, so codes are clamped.
    rows.div_(scales.where(scales > 0, 1.0)[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return scales, wide.add_(bad).to(torch.int8)
