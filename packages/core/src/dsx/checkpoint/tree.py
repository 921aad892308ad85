"""The state of a part, taken apart into plain data and named tensors, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsx.checkpoint.boxes import Alias, Boxes
from dsx.checkpoint.plain import Ref
from dsx.errors import CheckpointError


@dataclass(slots=True)
class Lifted:
    """One part's state: a plain tree with a ``Ref`` in place of each tensor, and the tensors by name."""

    tree: Any
    leaves: dict[str, Tensor | Boxes] = field(default_factory=dict)
    """Tensors, DTensors and Boxes as the part gave them, by their name in the file."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Second names: name -> name of the entry that holds the tensor."""


def lift(part: str, state: Any) -> Lifted:
    """Take a state apart. A tensor's name is its path: part and keys, joined by ``/``."""
    lifted = Lifted(None)
    lifted.tree = _lift(part, part, state, lifted)
    for name, target in lifted.aliases.items():
        if target not in lifted.leaves:
            raise CheckpointError(f"{name} is an alias of {target}, which is no tensor of part {part!r}")
    return lifted


def component(key: Any) -> str:
    """A dictionary key as part of a name. ``/`` is the separator, so it is escaped."""
    return str(key).replace("%", "%25").replace("/", "%2F")


def _lift(part: str, path: str, value: Any, out: Lifted) -> Any:
    if isinstance(value, (Tensor, Boxes, Alias, np.ndarray)):
        if path in out.leaves or path in out.aliases:
            raise CheckpointError(f"two tensors of part {part!r} would both be called {path}")
        if isinstance(value, Alias):
            out.aliases[path] = f"{part}/{value.of}"
        else:
            out.leaves[path] = _from_numpy(path, value) if isinstance(value, np.ndarray) else value
        return Ref(path, array=isinstance(value, np.ndarray))
    if isinstance(value, Mapping):
        items = {key: _lift(part, f"{path}/{component(key)}", item, out) for key, item in value.items()}
        return items if type(value) is dict or not isinstance(value, dict) or _holds_ref(items) else value
    if type(value) in (list, tuple):
        return type(value)(_lift(part, f"{path}/{index}", item, out) for index, item in enumerate(value))
    return value


def _from_numpy(path: str, value: np.ndarray[Any, Any]) -> Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    except TypeError as error:
        raise CheckpointError(f"{path} is a NumPy array of {value.dtype}, which torch cannot hold") from error


def _holds_ref(tree: Any) -> bool:
    return next(refs(tree), None) is not None


def refs(tree: Any) -> Iterator[Ref]:
    """Every ``Ref`` of a tree."""
    if isinstance(tree, Ref):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from refs(item)
    elif type(tree) in (list, tuple):
        for item in tree:
            yield from refs(item)


def join(template: Any, stored: Any, *, fresh: Callable[[Ref], Any], own: Callable[[Ref], Any]) -> Any:
    """The state to hand to a part: the template's own tensors, and the file's plain data around them.

    Where the template has a plain value or ``None``, whatever the file has there is taken, its tensors made by
    ``fresh``. Where the template's dictionary lacks a key, plain data of the file is passed on and tensors are left
    out. Keys that only the template has keep its values.
    """
    if isinstance(template, Ref):
        return own(template)
    if isinstance(template, dict) and isinstance(stored, dict):
        joined = {}
        for key, value in template.items():
            joined[key] = join(value, stored.get(key, value), fresh=fresh, own=own)
        for key, value in stored.items():
            if key not in template and not isinstance(value, Ref):
                joined[key] = join({}, value, fresh=fresh, own=own) if isinstance(value, dict) else _plain_only(value)
        return joined
    if type(template) in (list, tuple) and type(template) is type(stored) and len(template) == len(stored):
        return type(stored)(join(a, b, fresh=fresh, own=own) for a, b in zip(template, stored, strict=True))
    return _materialise(stored, fresh, own)


def _plain_only(value: Any) -> Any:
    """A list without the tensors that nobody asked for, so that its other items can still be read."""
    if type(value) in (list, tuple):
        return type(value)(_plain_only(item) for item in value)
    return None if isinstance(value, Ref) else value


def _materialise(value: Any, fresh: Callable[[Ref], Any], own: Callable[[Ref], Any]) -> Any:
    if isinstance(value, Ref):
        return fresh(value)
    if type(value) is dict:
        return {key: _materialise(item, fresh, own) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_materialise(item, fresh, own) for item in value)
    return value
