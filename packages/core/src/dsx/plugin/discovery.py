"""Where plugins come from: entry points of the group ``dsx``, modules named, objects given."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from dataclasses import dataclass
from typing import Any

GROUP = "dsx"


class PluginWarning(UserWarning):
    """A plugin was found that cannot be used. Nothing is wrong until a configuration asks for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin as it was found: loaded (active), blocked, or broken with its cause."""

    name: str
    distribution: str
    version: str
    plugin: Any = None
    state: str = "active"
    cause: str = ""

    @property
    def provider(self) -> str:
        """``dsx-zero 0.1.0``."""
        return " ".join(part for part in (self.distribution, self.version) if part)


def discover(blocked: frozenset[str]) -> list[Found]:
    """Every entry point of the group ``dsx``, loaded unless blocked; one that fails is kept with its cause."""
    points = importlib.metadata.entry_points(group=GROUP)
    return [_load(point, blocked) for point in sorted(set(points), key=lambda point: (point.name, point.value))]


def _load(point: importlib.metadata.EntryPoint, blocked: frozenset[str]) -> Found:
    distribution = point.dist.name if point.dist else "unknown distribution"
    version = point.dist.version if point.dist else ""
    if point.name in blocked:
        return Found(point.name, distribution, version, state="blocked", cause="blocked by request")
    try:
        plugin = point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (any import error makes it broken, never the program)
        cause = f"importing {point.value} raised {type(error).__name__}: {error}"
        return Found(point.name, distribution, version, state="broken", cause=cause)
    return Found(point.name, distribution, version, plugin)


def given(item: object | str) -> Found:
    """A plugin passed by hand: an object with hooks, or the name of a module."""
    if not isinstance(item, str):
        name = getattr(item, "__name__", type(item).__name__)
        return Found(str(name), "given by the caller", "", item)
    try:
        return Found(item, f"module {item}", "", importlib.import_module(item))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (any import error makes it broken, never the program)
        cause = f"importing {item} raised {type(error).__name__}: {error}"
        return Found(item, f"module {item}", "", state="broken", cause=cause)


def warn_broken(provider: str, cause: str) -> None:
    """The one warning that a broken plugin gives."""
    warnings.warn(f"plugin {provider} cannot be used: {cause}", PluginWarning, stacklevel=4)
