"""Codecs for the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import CODEC
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Named as in ``gradient_codec``; each made once for an engine, without arguments."""
    yield Component(
        CODEC, "bf16", load="dsx.codecs.bfloat16:Bf16", aliases=("bfloat16",), summary="half the bytes of fp32"
    )
    yield Component(CODEC, "int8", load="dsx.codecs.integer8:Int8", summary="blocks of 256 integers with a scale each")
