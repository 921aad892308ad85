"""What is checked, by its name or itself: how a check gets hold of it, and how an engine does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsx.plugin.hooks import hookimpl
from dsx.plugin.types import API_VERSION, Component, Kind, PluginSpec
from dsx.registry.registry import Registry

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager

NAME = "under-test"
"""The name under which a component is registered that has none yet."""


class Offering:
    """A plugin that offers one component under the name ``under-test``."""

    def __init__(self, kind: Kind[Any], subject: Any) -> None:
        self._component = Component(kind, NAME, load=lambda: subject)

    @hookimpl
    def dsx_plugin(self) -> PluginSpec:
        """A plugin of this API version."""
        return PluginSpec(name=NAME, api=API_VERSION, summary="a component in a test")

    @hookimpl
    def dsx_components(self) -> Sequence[Component[Any]]:
        """The one component."""
        return (self._component,)


@dataclass(frozen=True, slots=True)
class Section:
    """As ``config.optimizer`` and ``config.scheduler``."""

    type: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """A component that is checked: its factory, the registry that knows it, and its name in a configuration."""

    kind: Kind[Any]
    factory: Callable[..., Any]
    params: Mapping[str, Any]
    registry: Registry
    name: str
    title: str

    @property
    def section(self) -> Section:
        """How a configuration chooses it."""
        return Section(self.name, self.params)

    @property
    def plugins(self) -> PluginManager:
        """The plugins of an engine that is to know it."""
        return self.registry.plugins


def installed(plugins: Sequence[object | str] = ()) -> Registry:
    """A registry of the installed plugins and these."""
    from dsx.plugin.manager import plugin_manager

    return Registry(plugin_manager(extra=tuple(plugins)))


def subject_of(
    kind: Kind[Any],
    given: Any,
    *,
    params: Mapping[str, Any] | None,
    registry: Registry | None,
    plugins: Sequence[object | str] = (),
) -> Subject:
    """The component of this name, or this class or factory under a name of its own.

    registry: where a name is looked up; without it, the installed plugins and ``plugins``.
    """
    settings = dict(params or {})
    if isinstance(given, str):
        known = registry if registry is not None else installed(plugins)
        return Subject(kind, known.get(kind, given), settings, known, given, given)
    known = installed((Offering(kind, given), *plugins))
    return Subject(kind, given, settings, known, NAME, getattr(given, "__name__", type(given).__name__))
