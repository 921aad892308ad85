"""Checks the ``params`` of a configured optimizer or schedule against what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsx.errors import ConfigError, did_you_mean
from dsx.precision.names import dtype_from_name

_OURS = frozenset({"self", "params", "optimizer", "kernels"})
"""Arguments that the caller fills, not the user."""


def accepted(factory: Callable[..., Any], *, leading: int = 0) -> dict[str, inspect.Parameter] | None:
    """The named arguments that a user may give; ``None`` where it takes any.

    leading: how many arguments the caller gives by position, whatever they are called: 1 for an optimizer's parameters.
    """
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return None
    filled = _OURS | set(list(parameters)[:leading])
    return {name: p for name, p in parameters.items() if name not in filled}


def check_params(
    section: str, name: str, factory: Callable[..., Any], params: Mapping[str, Any], *, leading: int = 0
) -> None:
    """Raise ConfigError with all problems at once: unknown params (with the nearest known one), missing ones.

    ``section`` is the key, such as ``"optimizer"``, ``name`` the configured type, ``leading`` as for `accepted`.
    """
    known = accepted(factory, leading=leading)
    if known is None:
        return
    problems: list[str] = []
    for key in params:
        if key == "max_grad_norm" and key not in known:
            problems.append(
                f"{section}.params.max_grad_norm: clipping is not the optimizer's; use the key gradient_clipping"
            )
        elif key not in known:
            problems.append(f"{section}.params.{key} is not a parameter of {name}{did_you_mean(key, known)}")
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in params:
            problems.append(f"{section}.params.{key} is missing, and {name} needs it")
    if problems:
        raise ConfigError("\n".join([*problems, f"{name} takes: {', '.join(known)}"]))


def pair_of_betas(value: Any) -> tuple[float, float]:
    """Two numbers in [0, 1) from what a user gave; else a ConfigError."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"optimizer.params.betas is {value!r}, wanted two numbers in [0, 1)")
    return named(value[0], "betas", below=1.0), named(value[1], "betas", below=1.0)


def named(value: float, key: str, *, low: float = 0.0, below: float | None = None) -> float:
    """The value as a float, if it lies in [low, below); else a ConfigError that names the optimizer's parameter."""
    number = float(value)
    if not (number >= low and (below is None or number < below)):
        wanted = f"at least {low:g}" + ("" if below is None else f" and below {below:g}")
        raise ConfigError(f"optimizer.params.{key} is {value!r}, wanted {wanted}")
    return number


def moments_dtype(value: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of moments that a user asked for. Refuses fp16, in which squared gradients vanish."""
    if value is None:
        return None
    dtype = dtype_from_name(value, key="optimizer.params.state_dtype")
    if dtype == torch.float16:
        raise ConfigError("optimizer.params.state_dtype is fp16, where squares of gradients vanish: give bf16 or fp32")
    return dtype
