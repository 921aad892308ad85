"""Holds a plugin's hooks against their specification before any is called."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pluggy

from dsx.errors import PluginError, did_you_mean
from dsx.plugin import hooks
from dsx.plugin.discovery import Found
from dsx.plugin.naming import REMEDY


def inspect_plugin(manager: pluggy.PluginManager, found: Found) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """The plugin's hook functions by name, and what is wrong: each hook or argument that dsx does not know."""
    functions: dict[str, Callable[..., Any]] = {}
    problems: list[str] = []
    for name in sorted(dir(found.plugin)):
        options = manager.parse_hookimpl_opts(found.plugin, name)
        if options is None:
            if name in hook_names():
                problems.append(f"{name} is not marked with @hookimpl, so it would never be called")
            continue
        hook = options.get("specname") or name
        function = getattr(found.plugin, name)
        functions[hook] = function
        problems += _problems(hook, function)
        if options.get("wrapper") or options.get("hookwrapper"):
            problems.append(f"{hook} is a wrapper; hooks of dsx give values and cannot be wrapped")
    if "dsx_plugin" not in functions:
        problems.append("it has no hook dsx_plugin() that gives its PluginSpec")
    return functions, problems


def register(manager: pluggy.PluginManager, found: Found, *, name: str) -> None:
    """Hand the plugin to pluggy, which warns of hooks and arguments that are to go away; the plugin's name is added.

    Such a warning points at the plugin's own hook. To announce one: ``@hookspec(warn_on_impl=…)``, or
    ``warn_on_impl_args={"argument": …}``, with a class of ``dsx.deprecations``.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            manager.register(found.plugin, name=f"{found.provider}#{id(found.plugin)}")
        except (ValueError, pluggy.PluginValidationError) as error:
            raise refuse(f"it cannot be registered: {error}", "give it once; else report it to its authors") from error
    for item in caught:
        text = f"plugin {name!r} ({found.provider}): {item.message}"
        warnings.warn_explicit(text, item.category, item.filename, item.lineno)


def refuse(cause: str, remedy: str) -> PluginError:
    """Why a plugin cannot be used, and what to do; who it is, is added where it is told."""
    return PluginError(f"{cause}{REMEDY}{remedy}")


def _problems(hook: str, function: Callable[..., Any]) -> list[str]:
    known = hook_names()
    signature = inspect.signature(function)
    if hook not in known:
        return [f"{hook}{signature} is not a hook of dsx{did_you_mean(hook, known)}; hooks are: {', '.join(known)}"]
    wanted = inspect.signature(getattr(hooks, hook))
    extra = [name for name in signature.parameters if name not in wanted.parameters]
    if not extra:
        return []
    return [f"{hook}{signature} asks for {', '.join(extra)}, which dsx does not pass; it passes {hook}{wanted}"]


def hook_names() -> tuple[str, ...]:
    """Every hook of dsx, sorted."""
    return tuple(sorted(name for name in vars(hooks) if name.startswith("dsx_")))
