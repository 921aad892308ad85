"""Says in words what a field takes and what was found in its place."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dsx.config.auto import AutoType

_PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def found(value: Any) -> str:
    """The value as it stands in the file, with its type where that is the point."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{value:.60}"'
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"{value!r:.60}"


def wanted(field: FieldInfo) -> str:
    """What the field takes: its types and its range."""
    extra = field.json_schema_extra
    if isinstance(extra, Mapping) and "wanted" in extra:
        return str(extra["wanted"])
    *most, last = dict.fromkeys(_admitted(field.annotation, list(field.metadata)))
    return f"{', '.join(most)} or {last}" if most else last


def _admitted(annotation: Any, metadata: list[Any]) -> list[str]:
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = get_args(annotation)
        for item in more:
            extra = getattr(item, "json_schema_extra", None)
            if isinstance(extra, Mapping) and "wanted" in extra:
                return [str(extra["wanted"])]
            metadata = [*metadata, item, *getattr(item, "metadata", [])]
        return _admitted(inner, metadata)
    if origin in (typing.Union, types.UnionType):
        return [word for part in get_args(annotation) for word in _admitted(part, metadata)]
    if origin is Literal:
        return [f'"{value}"' if isinstance(value, str) else str(value) for value in get_args(annotation)]
    if annotation is AutoType:
        return ['"auto"']
    kind = annotation if origin is None else origin
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return ["an object"]
    if kind in (tuple, list, set, frozenset):
        items = [part for part in get_args(annotation) if part is not Ellipsis]
        return [f"a list of {' or '.join(_admitted(items[0], []))}" if items else "a list"]
    if kind in (int, float):
        return [_number(kind, metadata)]
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return ["an object"]
    return [_PLAIN.get(kind, getattr(kind, "__name__", str(kind)))]


def _number(kind: Any, metadata: list[Any]) -> str:
    bounds = {
        name: getattr(item, name)
        for item in metadata
        for name in ("gt", "ge", "lt", "le")
        if getattr(item, name, None) is not None
    }
    finite = any(getattr(item, "allow_inf_nan", True) is False for item in metadata)
    word = "a finite number" if kind is float and finite else _PLAIN[kind]
    if "ge" in bounds and "le" in bounds:
        return f"{word} from {bounds['ge']} to {bounds['le']}"
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    words = [f"{sign} {bounds[name]}" for name, sign in signs.items() if name in bounds]
    return " ".join([word, " and ".join(words)]).rstrip()
