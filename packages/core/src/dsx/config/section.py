"""The base of every configuration section: frozen, no unknown keys, a docstring under each field."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from dsx.config.auto import AUTO, AutoType


class Section(BaseModel):
    """A part of the configuration file. Subclass it, and write a docstring under each field.

    Nothing is guessed: text is not read as a number and ``true`` is not 1. A whole number may be written as ``5e8``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        populate_by_name=True,
        protected_namespaces=(),
        arbitrary_types_allowed=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _take_literally(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name is None or info.field_name not in cls.model_fields:
            return value
        kinds = plain_kinds(cls.model_fields[info.field_name].annotation)
        if isinstance(value, str) and value == "auto" and AutoType in kinds:
            return AUTO
        numeric = bool(kinds & {int, float})
        if isinstance(value, bool) and numeric and bool not in kinds:
            raise PydanticCustomError("not_a_number", "a truth value is not a number")
        if isinstance(value, str) and (numeric or bool in kinds) and str not in kinds:
            raise PydanticCustomError("text", "text is not read as a number or a truth value")
        return value


def plain_kinds(annotation: Any) -> frozenset[Any]:
    """The plain types that an annotation admits: of ``Auto[int] | None`` these are int, AutoType and NoneType."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return plain_kinds(get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return frozenset().union(*(plain_kinds(part) for part in get_args(annotation)))
    if origin is Literal:
        return frozenset(type(value) for value in get_args(annotation))
    return frozenset({annotation if origin is None else origin})


def key_of(model: type[BaseModel], name: str) -> str:
    """How a field is written in the file: its alias where it has one, else its name."""
    info = model.model_fields[name]
    return info.alias if isinstance(info.alias, str) else name


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Every key that a section accepts -> the field that it fills (names, aliases and alternative spellings)."""
    found: dict[str, str] = {}
    for name, info in model.model_fields.items():
        found[name] = name
        choices = getattr(info.validation_alias, "choices", [info.validation_alias])
        for alias in (info.alias, *choices):
            if isinstance(alias, str):
                found[alias] = name
    return found
