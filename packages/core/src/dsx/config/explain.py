"""Says of each key what holds, where it comes from and why; and where DeepSpeed does otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dsx.config.load import unused_keys
from dsx.config.root import DsxConfig
from dsx.config.section import key_of
from dsx.config.wording import found
from dsx.plugin.types import Resolved


@dataclass(frozen=True, slots=True)
class Row:
    """One key: its path in the file, the value that holds, its source (given, default, auto, unused), and why."""

    key: str
    value: str
    source: str
    why: str
    deepspeed: str = ""


def explain(
    config: DsxConfig, *, resolved: Sequence[Resolved] = (), raw: Mapping[str, Any] | None = None
) -> tuple[Row, ...]:
    """Rows for every key, in the order of the model; keys that were accepted because they ask for nothing come last.

    config: as loaded or, better, as planned. resolved: what planning put for ``"auto"``. raw: the file as it was read.
    """
    reasons = {item.key: item for item in resolved}
    unused = tuple(Row(key, found(value), "unused", why) for key, value, why in unused_keys(raw or {}, type(config)))
    return (*_rows(config, config, reasons, written="", named=""), *unused)


def _rows(
    config: DsxConfig, section: BaseModel, reasons: Mapping[str, Resolved], *, written: str, named: str
) -> Iterator[Row]:
    model = type(section)
    for name, field in model.model_fields.items():
        value = getattr(section, name)
        key, path = written + key_of(model, name), named + name
        if isinstance(value, BaseModel):
            yield from _rows(config, value, reasons, written=key + ".", named=path + ".")
        elif isinstance(value, Mapping) and value:
            for inner, item in value.items():
                yield Row(f"{key}.{inner}", _text(item), _source(config, f"{path}.{inner}"), "passed on as it is")
        else:
            reason = reasons.get(key) or reasons.get(path)
            source = "auto" if reason else _source(config, path)
            yield Row(key, _text(value), source, reason.why if reason else _first_line(field), _habit(field))


def _source(config: DsxConfig, path: str) -> str:
    return "given" if config.has(path) else "default"


def _text(value: Any) -> str:
    return (
        value if isinstance(value, str) else found(value) if value is None or isinstance(value, bool) else repr(value)
    )


def _first_line(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _habit(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("deepspeed", "")) if isinstance(extra, Mapping) else ""
