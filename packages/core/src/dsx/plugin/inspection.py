"""Holds a plugin's hooks against their specification before any is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pluggy

from dsx.errors import PluginError, did_you_mean
from dsx.plugin import hooks
from dsx.plugin.discovery import Found


def inspect_plugin(manager: pluggy.PluginManager, found: Found) -> dict[str, Callable[..., Any]]:
    """The plugin's hook functions by name. Raises PluginError naming each hook or argument that dsx does not know."""
    functions: dict[str, Callable[..., Any]] = {}
    problems: list[str] = []
    for name in sorted(dir(found.plugin)):
        options = manager.parse_hookimpl_opts(found.plugin, name)
        if options is None:
            continue
        hook = options.get("specname") or name
        function = getattr(found.plugin, name)
        functions[hook] = function
        problems += _problems(hook, function)
        if options.get("wrapper") or options.get("hookwrapper"):
            problems.append(f"{hook} is a wrapper; hooks of dsx give values and cannot be wrapped")
    if "dsx_plugin" not in functions:
        problems.append("it has no hook dsx_plugin() that gives its PluginSpec")
    if problems:
        raise PluginError("; ".join(problems))
    return functions


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
