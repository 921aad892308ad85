"""Small plugins made on the spot, and managers that hold them and nothing else."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from dsx.plugin import API_VERSION, PluginSpec, Section, hookimpl
from dsx.plugin.discovery import Found
from dsx.plugin.manager import PluginManager


def plugin(
    name: str,
    *,
    sections: Mapping[str, type[Section]] | None = None,
    api: int = API_VERSION,
    **hooks: Callable[..., Any],
) -> types.ModuleType:
    """A module with a spec and these hooks."""
    module = types.ModuleType(f"fake_{name}")
    spec = PluginSpec(name=name, api=api, summary="made for a test", sections=sections or {})
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def found(module: Any, *, distribution: str = "", version: str = "1.0") -> Found:
    """The module as discovery would hand it over."""
    name = module.__name__.removeprefix("fake_")
    return Found(name, distribution or f"acme-{name}", version, module)


def manager(*modules: Any) -> PluginManager:
    """A manager of these plugins alone, with none that is installed."""
    return PluginManager([found(module) for module in modules])
