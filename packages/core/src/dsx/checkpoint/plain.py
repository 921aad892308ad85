"""Plain data as strict JSON, and back: what a checkpoint holds besides tensors. No class is ever pickled."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dsx.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands in a tree of plain data for a tensor that is stored under this name."""

    name: str
    array: bool = False
    """The tensor was a NumPy array and becomes one again."""


def dumps(tree: Any, *, where: str) -> str:
    """The tree as JSON; a value that is not plain is a CheckpointError that names its place."""
    return json.dumps(_encode(tree, where), allow_nan=False, separators=(",", ":"))


def loads(text: str, *, where: str) -> Any:
    """The tree that ``dumps`` wrote: equal values of equal types, tensors as ``Ref``."""
    try:
        return _decode(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where} cannot be read: {error}") from error


def merge(first: Any, second: Any) -> Any:
    """The union of two trees: dictionaries are joined key by key, elsewhere the first has its say."""
    if isinstance(first, dict) and isinstance(second, dict):
        joined = {key: merge(value, second[key]) if key in second else value for key, value in first.items()}
        return joined | {key: value for key, value in second.items() if key not in first}
    return first


def _encode(value: Any, where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, np.generic):
        return _encode(value.item(), where)
    if isinstance(value, Mapping):
        return _encode_mapping(value, where)
    if kind is list:
        return [_encode(item, f"{where}/{index}") for index, item in enumerate(value)]
    if kind is tuple or isinstance(value, torch.Size):
        return {"$tuple": [_encode(item, f"{where}/{index}") for index, item in enumerate(value)]}
    if kind in (set, frozenset):
        return {"$set": [_encode(item, where) for item in sorted(value, key=repr)]}
    if kind in (bytes, bytearray):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if kind is Ref:
        return {"$array" if value.array else "$tensor": value.name}
    if kind is torch.dtype:
        return {"$dtype": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"$device": str(value)}
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint does not hold: it would need pickling."
        " Give plain data (numbers, strings, lists, dictionaries) or tensors, such as vars(value) or a state_dict()"
    )


def _encode_mapping(value: Mapping[Any, Any], where: str) -> Any:
    if not isinstance(value, dict):
        value = dict(value)
    if isinstance(value, Counter):
        return {"$counter": [[_encode(key, where), count] for key, count in value.items()]}
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(item, f"{where}/{key}") for key, item in value.items()}
    return {"$items": [[_encode(key, where), _encode(item, f"{where}/{key}")] for key, item in value.items()]}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (mark, body), *_ = value.items()
        if mark.startswith("$"):
            return _decode_marked(mark, body)
    return {key: _decode(item) for key, item in value.items()}


def _decode_marked(mark: str, body: Any) -> Any:
    match mark:
        case "$float":
            return float(body)
        case "$tuple":
            return tuple(_decode(item) for item in body)
        case "$set":
            return {_decode(item) for item in body}
        case "$bytes":
            return base64.b64decode(body)
        case "$tensor" | "$array":
            return Ref(str(body), array=mark == "$array")
        case "$dtype":
            dtype = getattr(torch, body)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{body!r} is no dtype")
            return dtype
        case "$device":
            return torch.device(body)
        case "$counter":
            return Counter({_decode(key): count for key, count in body})
        case "$items":
            return {_decode(key): _decode(item) for key, item in body}
    raise ValueError(f"{mark!r} is no mark of plain data")
