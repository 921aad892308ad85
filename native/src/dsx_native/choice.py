"""Which bodies of the library run on this processor, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from dsx.errors import KernelError
from dsx.plugin import Score
from dsx_native import _core
from dsx_native.memory import FLOATS

SCORES: Mapping[str, int] = MappingProxyType({"scalar": 10, "neon": 20, "avx2": 20, "avx512": 30})


def choice() -> tuple[str, str]:
    """The instruction set that is used and, where DSX_NATIVE_ISA asks for one that is not to be had, what is wrong."""
    try:
        return _core.chosen(), ""
    except KernelError as error:
        return _core.available()[-1], str(error)


def score() -> Score:
    """How good the bodies are that this processor runs.

    A wish that cannot be met lowers nothing: falling back to torch would hide it, and the call itself refuses it.
    """
    isa, trouble = choice()
    return Score(SCORES[isa], trouble or f"{isa} bodies; this processor runs {', '.join(_core.available())}")


def supports(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one that the library's kernels take."""
    return tensor.device.type == "cpu" and tensor.dtype in FLOATS
