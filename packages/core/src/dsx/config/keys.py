"""Walks a raw configuration beside its model: every key that does not belong is named, with what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from dsx.config.root import DsxConfig, item_class, section_class
from dsx.config.section import keys_of
from dsx.errors import did_you_mean
from dsx.plugin.catalog import GONE, SECTIONS, install

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager


def is_inert(value: Any) -> bool:
    """Whether a section asks for nothing: absent, false, empty or ``{"enabled": false}``."""
    if isinstance(value, Mapping):
        return not value or value.get("enabled") is False
    return value is None or value is False


def foreign_note(key: str, plugins: PluginManager) -> str:
    """Why a top-level key that is not the model's own cannot be used here, and what to do."""
    if key in GONE:
        return f"{key!r} is not part of dsx: {GONE[key].why}\n    what to do: {GONE[key].instead}"
    distribution = SECTIONS[key]
    for info in plugins.info():
        if info.distribution == distribution and info.state == "broken":
            remedy = info.remedy or f"mend the installation: {install('--force-reinstall ' + distribution)}"
            return (
                f"section {key!r} needs {distribution}, which is installed but broken: plugin {info.provider}: "
                f"{info.cause}\n    what to do: {remedy}"
            )
        if info.distribution == distribution and info.state == "blocked":
            return (
                f"section {key!r} needs plugin {info.provider}, which is blocked\n    what to do: unblock {info.name!r}"
            )
        if info.distribution == distribution:
            return (
                f"section {key!r} is not known to the installed {distribution} {info.version}\n"
                f"    what to do: {install('--upgrade ' + distribution)}, or remove the section"
            )
    return f"section {key!r} needs {distribution}: {install(distribution)}"


def key_problems(raw: Mapping[str, Any], model: type[DsxConfig], *, plugins: PluginManager) -> Iterator[str]:
    """One text for each key, at any depth, that does not belong, or is given under two spellings at once."""
    broken = [f"{info.provider} is broken and may own it: {info.trouble}" for info in plugins.broken()]
    for key, value in raw.items():
        if key in keys_of(model):
            continue
        if key in SECTIONS or key in GONE:
            if not is_inert(value):
                yield foreign_note(key, plugins)
        else:
            yield "\n    ".join([_unknown("", key, model), *broken])
    yield from _below("", raw, model)


def _below(prefix: str, raw: Mapping[str, Any], model: type[BaseModel]) -> Iterator[str]:
    keys = keys_of(model)
    seen: dict[str, str] = {}
    for key, value in raw.items():
        field = keys.get(key)
        if field is None:
            if prefix:
                yield _unknown(prefix, key, model)
            continue
        if field in seen:
            yield f"{prefix}{key}: found also as {seen[field]!r}, wanted one spelling\n    what to do: remove one"
        seen[field] = key
        inner = section_class(model, field)
        if inner is not None and isinstance(value, Mapping):
            yield from _below(f"{prefix}{key}.", value, inner)
        each = item_class(model, field)
        if each is not None and isinstance(value, list | tuple):
            for index, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from _below(f"{prefix}{key}[{index}].", item, each)


def _unknown(prefix: str, key: str, model: type[BaseModel]) -> str:
    known = [*keys_of(model), *(() if prefix else (*SECTIONS, *GONE))]
    meant = did_you_mean(key, known)
    if not meant and not prefix:
        meant = _elsewhere(key, model)
    where = prefix.rstrip(".") or "the configuration"
    remedy = "correct or remove it" if meant else f"remove it; keys of {where} are: {', '.join(sorted(keys_of(model)))}"
    return f"{prefix}{key}: unknown key{meant}\n    what to do: {remedy}"


def _elsewhere(key: str, model: type[BaseModel]) -> str:
    for field in model.model_fields:
        inner = section_class(model, field)
        if inner is not None and key in keys_of(inner):
            return f" (it belongs into {field!r})"
    return ""
