"""Turns whatever names a configuration into a plain dictionary; nothing is checked but the form."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsx.errors import ConfigError


def read_source(source: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """A dictionary from a mapping, a path to a JSON file, JSON text, or JSON in url-safe base64. None is empty."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, Path):
        return _parse(_read_file(source), where=str(source))
    if not isinstance(source, str):
        raise ConfigError(
            f"a configuration cannot be read from {type(source).__name__}: wanted a mapping, a path or JSON text"
        )
    if source.lstrip().startswith("{"):
        return _parse(source, where="the text")
    path = Path(source)
    if _is_file(path):
        return _parse(_read_file(path), where=source)
    decoded = _from_base64(source)
    if decoded is not None:
        return _parse(decoded, where="the base64 text")
    raise ConfigError(
        f"no configuration at {source!r:.200}: found neither a file nor JSON, wanted a path to a JSON file, JSON text "
        f"or JSON in url-safe base64\n    what to do: check the path; the working directory is {Path.cwd()}"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text too long for a path, or with a NUL
        return False


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error


def _from_base64(text: str) -> str | None:
    try:
        decoded = base64.b64decode(text, altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    # Many a file name happens to be base64 as well; what it decodes to is not JSON.
    return decoded if decoded.lstrip().startswith("{") else None


def _parse(text: str, *, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, where))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{where} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}\n"
            f"    what to do: mend that line; JSON has no comments and no comma after the last entry"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds {type(value).__name__}, wanted an object: {{...}}")
    return value


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    doubled = sorted({key for key in keys if keys.count(key) > 1})
    if doubled:
        raise ConfigError(
            f"{where} gives {', '.join(map(repr, doubled))} twice in one object: found two values, wanted one\n"
            f"    what to do: remove one of them"
        )
    return dict(pairs)
