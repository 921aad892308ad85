"""The front of every partitioner: its answer is checked before anybody relies on it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dsx.errors import DsxError, PluginError
from dsx.plugin.naming import Named
from dsx.plugin.types import Layer

if TYPE_CHECKING:
    from torch import nn

    from dsx.plugin.roles import Partitioner


def cut(partitioner: Partitioner, layers: Sequence[Layer], *, parts: int, name: str = "") -> tuple[int, ...]:
    """The borders of so many contiguous parts: part i is ``layers[borders[i]:borders[i + 1]]``.

    name: as messages call the partitioner; its own name where it is not given. Raises a PluginError for an answer that
    is not ``parts + 1`` whole numbers from 0 to ``len(layers)`` which never fall, and for a partitioner that fails.
    """
    if parts < 1:
        raise ValueError(f"parts is {parts}, wanted at least 1")
    known = f"partitioner {name or getattr(partitioner, '__qualname__', type(partitioner).__qualname__)!r}"
    if isinstance(partitioner, Named):
        known = partitioner.label
    given = tuple(layers)
    try:
        answer = partitioner(given, parts=parts)
        borders = tuple(operator.index(border) for border in answer)
    except DsxError:
        raise
    except Exception as error:
        raise _refused(known, f"{type(error).__name__}: {error}", layers=len(given), parts=parts) from error
    wrong = _wrong(borders, layers=len(given), parts=parts)
    if wrong:
        raise _refused(known, f"{list(borders)}: {wrong}", layers=len(given), parts=parts)
    return borders


def layer_of(name: str, module: nn.Module) -> Layer:
    """What a partitioner is told of a module: parameters that it shares with itself count once."""
    return Layer(name, type(module).__name__, sum(param.numel() for param in module.parameters()))


def _wrong(borders: Sequence[int], *, layers: int, parts: int) -> str:
    """What is wrong with these borders, in words; nothing where they are right."""
    if len(borders) != parts + 1:
        return f"{len(borders)} borders"
    if borders[0] != 0:
        return f"the first border is {borders[0]}"
    if borders[-1] != layers:
        return f"the last border is {borders[-1]}"
    for index, (before, after) in enumerate(pairwise(borders)):
        if after < before:
            return f"border {index + 1} falls from {before} to {after}"
    return ""


def _refused(name: str, found: str, *, layers: int, parts: int) -> PluginError:
    return PluginError(
        f"{name} gave no way to cut {layers} layers into {parts} parts: found {found}; "
        f"wanted {parts + 1} whole numbers from 0 to {layers} that never fall\n"
        f"    what to do: report it to the plugin's authors, or choose another partitioner, such as 'uniform'"
    )
