"""Dtype names: as users write them, and as we print them."""

from __future__ import annotations

import torch

from dsx.errors import ConfigError, did_you_mean

_NAMES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "float": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
    "half": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}

_SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def dtype_from_name(name: str | torch.dtype, *, key: str) -> torch.dtype:
    """The dtype of a user's word for it, such as ``"bf16"``, ``"bfloat16"`` or ``"torch.bfloat16"``.

    ``key`` is the configuration key that the ConfigError for an unknown name mentions.
    """
    if isinstance(name, torch.dtype):
        return name
    found = _NAMES.get(name.lower().removeprefix("torch."))
    if found is None:
        raise ConfigError(f"{key} is {name!r}, wanted one of fp32, fp16, bf16{did_you_mean(name, _NAMES)}")
    return found


def short_name(dtype: torch.dtype) -> str:
    """``bf16`` for torch.bfloat16 and so on; other dtypes by torch's own name."""
    return _SHORT.get(dtype, str(dtype).removeprefix("torch."))
