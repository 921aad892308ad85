"""Imports what a component names, when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dsx.errors import DsxError, PluginError


def load_object(load: str | Callable[[], Any], *, what: str, provider: str) -> Any:
    """The object behind ``"module:attribute"`` or behind a function. Raises PluginError naming who offered it."""
    try:
        if not isinstance(load, str):
            return load()
        module, separator, path = load.partition(":")
        if not separator or not module or not path:
            raise ValueError(f'{load!r} is not of the form "module:attribute"')
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return found
    except DsxError:
        raise
    except Exception as error:
        raise PluginError(
            f"{what} of plugin {provider} cannot be loaded: {type(error).__name__}: {error}\n"
            f"    what to do: report it to the plugin's authors, or use another"
        ) from error
