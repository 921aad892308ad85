"""Where numbers left their range: the first bad parameter, and a sentence about it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def first_bad(gradients: Iterable[tuple[str, Tensor | None]]) -> str | None:
    """Name of the first gradient with an inf or nan in it; ``None`` where all are finite."""
    for name, gradient in gradients:
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            return name
    return None


def owner_of(model: nn.Module, parameter: str) -> tuple[str, nn.Module]:
    """(module name, module) that holds a parameter of this name; the model itself, as ``""``, where none does."""
    path, _, _ = parameter.rpartition(".")
    module: nn.Module = model
    for part in path.split(".") if path else ():
        child = dict(module.named_children()).get(part)
        if child is None:
            return "", model
        module = child
    return path, module


def overflow_report(model: nn.Module, bad: str | None, *, step: int, scale: float = 1.0) -> str:
    """A sentence that names step, scale, first bad parameter and its module.

    ``bad`` is ``Norm.bad``; ``None`` where only the loss or the norm itself was not finite.
    """
    where = f"Update {step}" + (f" (loss scale {scale:g})" if scale != 1.0 else "")
    if bad is None:
        return f"{where}: the gradient norm is not finite, though each gradient is: it left the range of fp32."
    path, module = owner_of(model, bad)
    place = f"module {path!r} ({type(module).__name__})" if path else f"the model itself ({type(module).__name__})"
    return f"{where}: the first inf or nan gradient is that of parameter {bad!r}, in {place}."
