"""Signatures, fields and docstrings as text that is the same for every version of Python and torch."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from dsx.config.auto import AutoType
from dsx.config.section import Section
from dsx.plugin.types import Kind

SPECIAL = ("__init__", "__call__", "__enter__")


def in_markdown(text: str) -> str:
    """A docstring's text for a page."""
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text.replace("``", "`"))


def summary_of(thing: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return in_markdown(" ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()))


def cell(text: str) -> str:
    """Text that can stand in a table."""
    return " ".join(text.replace("|", "\\|").split())


def shown(value: Any) -> str:
    """A default, where its text cannot vary; else an ellipsis."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, AutoType):
        return "AUTO"
    if isinstance(value, tuple) and all(item is None or isinstance(item, bool | int | float | str) for item in value):
        return repr(value)
    return "…"


def annotation_of(annotation: Any) -> str:
    """An annotation as it is written."""
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def signature_of(function: Any, *, bound: bool = False) -> str:
    """``(first: int, *, second: str = '') -> None``; of a method without its ``self``."""
    signature = inspect.signature(function)
    parts: list[str] = []
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY)
        parts.append(_parameter(parameter))
    result = annotation_of(signature.return_annotation)
    return f"({', '.join(parts)})" + (f" -> {result}" if result else "")


def _parameter(parameter: inspect.Parameter) -> str:
    star = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    kind = annotation_of(parameter.annotation)
    text = f"{star}{parameter.name}" + (f": {kind}" if kind else "")
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {shown(parameter.default)}" if kind else f"{text}={shown(parameter.default)}"


def stub_of(name: str, thing: Any) -> Iterator[str]:
    """Lines that say all that others may rely on: of a class its bases, fields and methods."""
    if isinstance(thing, type):
        yield f"class {name}{_bases(thing)}"
        yield from (f"    {line}" for line in members_of(thing))
    elif inspect.isfunction(thing):
        yield f"def {name}{signature_of(thing)}"
    elif isinstance(thing, Kind):
        yield f"{name} = Kind({thing.name!r})"
    elif isinstance(thing, dict):
        yield f"{name} = {thing!r}"
    elif type(thing).__module__ in ("typing", "types"):
        yield f"{name}: TypeAlias"
    else:
        yield f"{name}: {type(thing).__name__}"


def _bases(cls: type) -> str:
    names = [base.__name__ for base in cls.__bases__ if base is not object and base.__name__ not in ("Generic",)]
    return f"({', '.join(names)})" if names else ""


def members_of(cls: type) -> Iterator[str]:
    """Fields, attributes, properties and methods, those of base classes of ours as well."""
    if issubclass(cls, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in cls)
        return
    ours = [base for base in reversed(cls.__mro__) if base.__module__.partition(".")[0] == "dsx"]
    yield from dict.fromkeys(line for base in ours for line in _fields(base))
    methods = {name: value for base in ours for name, value in vars(base).items()}
    for name, value in methods.items():
        made = name == "__init__" and (is_dataclass(cls) or value.__name__ == "_no_init_or_replace_init")
        if not name.startswith(("_", "model_")) or (name in SPECIAL and not made):
            yield from _method(name, value)


def _fields(cls: type) -> Iterator[str]:
    if is_dataclass(cls):
        known = inspect.get_annotations(cls)
        for field in fields(cls):
            default = "" if field.default is MISSING else f" = {shown(field.default)}"
            made = " = …" if field.default_factory is not MISSING else default
            if field.name in known and not field.name.startswith("_"):
                yield f"{field.name}: {annotation_of(known[field.name])}{made}"
    elif not issubclass(cls, BaseModel):
        for name, annotation in inspect.get_annotations(cls).items():
            if not name.startswith("_"):
                yield f"{name}: {annotation_of(annotation)}"
        yield from _assigned(cls)
    elif issubclass(cls, Section) and cls is not Section:
        yield "# keys: configuration.md"


def _assigned(cls: type) -> Iterator[str]:
    """Attributes that ``__init__`` gives to ``self``."""
    if not inspect.isfunction(vars(cls).get("__init__")) or getattr(cls, "_is_protocol", False):
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(vars(cls)["__init__"])))
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if not isinstance(target, ast.Attribute) or target.attr.startswith("_"):
                continue
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
                yield f"{target.attr}{kind}"


def _method(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        kind = annotation_of(inspect.signature(value.fget).return_annotation) if value.fget else ""
        yield f"{name}: {kind}  # property"
    elif isinstance(value, staticmethod):
        yield f"def {name}{signature_of(value.__func__)}  # static"
    elif isinstance(value, classmethod):
        yield f"def {name}{signature_of(value.__func__, bound=True)}  # of the class"
    elif inspect.isfunction(value):
        yield f"def {name}{signature_of(value, bound=True)}"
