"""Modules that stay in fp32 within a model of lower precision."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from dsx.errors import ConfigError
from dsx.precision.policy import PrecisionPolicy


def kept_names(policy: PrecisionPolicy, model: nn.Module) -> frozenset[str]:
    """Names of the parameters that stay fp32.

    A pattern names one or more neighbouring parts of a parameter's dotted name, with ``*`` as wildcard: ``norm`` keeps
    ``blocks.0.norm.weight``. Raises ConfigError for a pattern of the configuration that keeps nothing.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    kept: set[str] = set()
    for pattern in policy.keep_fp32:
        found = [name for name in names if _matches(name, pattern)]
        if not found:
            raise ConfigError(
                f"data_types.keep_in_fp32_modules has {pattern!r}, but no parameter of the model has "
                "such a part in its name: give module names, such as those of model.named_modules()"
            )
        kept.update(found)
    if policy.keep_fp32_from_model:
        for pattern in _wishes(model):
            kept.update(name for name in names if _matches(name, pattern))
    if policy.parameter != torch.float32:
        # Their statistics are fp32, and torch normalises in one dtype.
        norms = [path for path, module in model.named_modules() if isinstance(module, _BatchNorm)]
        kept.update(name for name in names if name.rpartition(".")[0] in norms)
    return frozenset(kept)


def cast_around_kept(model: nn.Module, kept: frozenset[str], *, outside: torch.dtype) -> list[RemovableHandle]:
    """Hooks that cast floating inputs of modules with kept parameters to fp32, and their outputs back to ``outside``.

    Only modules that own such a parameter themselves get hooks. Remove the returned handles to undo.
    """
    handles: list[RemovableHandle] = []
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        own = [prefix + name for name, _ in module.named_parameters(recurse=False)]
        if not own or not all(name in kept for name in own):
            continue
        handles.append(module.register_forward_pre_hook(_cast_inputs, with_kwargs=True))
        handles.append(module.register_forward_hook(_OutputCast(outside)))
    return handles


class _OutputCast:
    """A forward hook that casts fp32 outputs to one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return _cast(output, torch.float32, self._dtype)


def _cast_inputs(module: nn.Module, args: Any, kwargs: Any) -> Any:
    def up(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(up, args), tree_map(up, kwargs)


def _cast(tree: Any, source: torch.dtype, target: torch.dtype) -> Any:
    return tree_map(lambda leaf: leaf.to(target) if isinstance(leaf, Tensor) and leaf.dtype == source else leaf, tree)


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    starts = range(len(parts) - len(wanted) + 1)
    return any(all(fnmatchcase(p, w) for p, w in zip(parts[at:], wanted, strict=False)) for at in starts)


def _wishes(model: nn.Module) -> list[str]:
    """What the model itself wants kept: the attributes that Hugging Face models carry."""
    wishes: list[str] = []
    for attribute in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
        wishes.extend(getattr(model, attribute, None) or ())
    return wishes
