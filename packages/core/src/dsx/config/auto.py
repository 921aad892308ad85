"""``"auto"`` as a value of its own: it is never mistaken for a number, and planning must replace it."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

T = TypeVar("T")


class AutoType:
    """The type of `AUTO`, of which there is one instance. Reads and writes the text ``"auto"``."""

    _instance: AutoType | None = None

    def __new__(cls) -> AutoType:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return '"auto"'

    def __reduce__(self) -> tuple[type[AutoType], tuple[()]]:
        return (AutoType, ())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _read, serialization=core_schema.plain_serializer_function_ser_schema(_write)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"const": "auto"}


AUTO = AutoType()

Auto: TypeAlias = T | AutoType
"""``Auto[int]``: a whole number, or ``"auto"`` until a resolver named in planning gives one, with its reason."""


def _read(value: Any) -> AutoType:
    if isinstance(value, AutoType) or (isinstance(value, str) and value == "auto"):
        return AUTO
    raise PydanticCustomError("auto", 'not "auto"')


def _write(_value: AutoType) -> str:
    return "auto"
