"""A codec: numbers in fewer bytes, for the wire. This one sends 8-bit floats and one scale.

Turned on by ``"gradient_codec": "float8"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dsx.plugin import CODEC, Component, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-codec", api=1, summary="8-bit floats with a scale")
LARGEST = torch.finfo(torch.float8_e4m3fn).max
SCALE = torch.float32.itemsize
"""Bytes of the scale, which stands before the numbers."""


class Float8:
    """Numbers as e4m3, scaled so that the largest magnitude is e4m3's largest; what is not finite stays so."""

    name = "float8"

    def packed_bytes(self, numel: int) -> int:
        """A byte for each number, and the scale."""
        return numel + SCALE if numel else 0

    def encode(self, values: Tensor, packed: Tensor) -> None:
        """Fill ``packed``."""
        if values.numel():
            wide = values.float()
            scale = (wide.abs().amax() / LARGEST).clamp_min(torch.finfo(torch.float32).tiny).reshape(1)
            packed[:SCALE].copy_(scale.view(torch.uint8))
            packed[SCALE:].copy_((wide / scale).to(torch.float8_e4m3fn).view(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        """Fill ``values``. The scale is copied first: a view of it might not be aligned."""
        if values.numel():
            scale = packed[:SCALE].clone().view(torch.float32)
            values.copy_(packed[SCALE:].view(torch.float8_e4m3fn).float() * scale)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The codec, under its name."""
    yield Component(CODEC, "float8", load=lambda: Float8, summary="8-bit floats with one scale")
