"""Imports what a component names, when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dsx.errors import DsxError, PluginError
from dsx.plugin.naming import REMEDY, Who, add_note


def load_object(load: str | Callable[[], Any], *, what: str, provider: str, block: str = "") -> Any:
    """The object behind ``"module:attribute"`` or behind a function. Raises PluginError naming who offered it.

    provider: ``'zero' (dsx-zero 0.1.0)``. block: by what name the plugin is blocked.
    """
    who = Who(provider, block)
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
    except DsxError as error:
        add_note(error, who, f"loading {what}")
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{what} of plugin {provider} cannot be loaded: {type(error).__name__}: {error}{REMEDY}"
            f"install what it needs, or use another; else {who.remedy}"
        ) from error
