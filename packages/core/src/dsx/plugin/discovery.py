"""Where plugins come from: entry points of the group ``dsx``, modules named by project or user, objects given."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from dsx.plugin.local import VARIABLE, is_importable, make_importable, named_in, project_around, working_directory
from dsx.plugin.naming import REMEDY, Who
from dsx.warned import warn_outside

GROUP = "dsx"
GIVEN = "given by the caller"

SLOW = 0.5
"""Seconds of import above which a plugin is reported: every start of every program pays them."""


class PluginWarning(UserWarning):
    """A plugin was found that cannot be used, or costs much. Nothing is wrong until a configuration asks for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin as it was found: loaded (active), blocked, or broken with its cause and what to do."""

    name: str
    distribution: str
    version: str
    plugin: Any = None
    state: str = "active"
    cause: str = ""
    remedy: str = ""
    seconds: float = field(default=0.0, compare=False)
    """How long its import took; torch and the core's own vocabulary were there before."""
    module: str = ""
    """The module that was imported for it; nothing for an object that the caller gave."""

    @property
    def provider(self) -> str:
        """``dsx-zero 0.1.0``."""
        return " ".join(part for part in (self.distribution, self.version) if part)

    @property
    def block(self) -> str:
        """The name by which it can be blocked; nothing for an object that the caller gave."""
        return "" if self.distribution == GIVEN else self.name


def find(extra: Sequence[object | str] = (), *, blocked: frozenset[str] = frozenset()) -> list[Found]:
    """Every plugin there is: installed, the project's, those in DSX_PLUGINS, and those given; each module once."""
    found = discover(blocked)
    found += local_plugins(blocked, known=found)
    for item in extra:
        if not _is_known(item, found):
            found.append(given(item, blocked=blocked))
    for item in found:
        if item.state == "active" and item.seconds > SLOW:
            _warn_slow(item)
    return found


def discover(blocked: frozenset[str]) -> list[Found]:
    """Every entry point of the group ``dsx``, loaded unless blocked; one that fails is kept with its cause."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    once: dict[str, importlib.metadata.EntryPoint] = {}
    for point in points:  # two entry points to one module are one plugin, as is a distribution that is found twice
        once.setdefault(point.value, point)
    return [_installed(point, blocked) for point in once.values()]


def local_plugins(blocked: frozenset[str] = frozenset(), *, known: Sequence[Found] = ()) -> list[Found]:
    """Modules that the pyproject.toml around the working directory names, and those in DSX_PLUGINS, but those known.

    What they name can be imported afterwards from anywhere in the project: its folder, and ``src`` in it, stand at the
    end of ``sys.path``. Raises ConfigError for a pyproject.toml that cannot be understood.
    """
    here = working_directory()
    project = project_around(here) if here is not None else None
    named = [(name, f"pyproject.toml of {project.folder}") for name in project.modules] if project is not None else []
    if named and project is not None:
        make_importable(project.roots)
    by_user = named_in(os.environ)
    if here is not None and not all(is_importable(name) for name in by_user):
        make_importable([here])
    named += [(name, VARIABLE) for name in by_user]
    found: list[Found] = []
    for name, where in named:
        if not _is_known(name, [*known, *found]):
            found.append(_module(name, where, blocked))
    return found


def given(item: object | str, *, blocked: frozenset[str] = frozenset()) -> Found:
    """A plugin passed by hand: an object with hooks, or the name of a module."""
    if isinstance(item, str):
        return _module(item, f"module {item}", blocked)
    name = getattr(item, "__name__", type(item).__name__)
    return Found(str(name), GIVEN, "", item)


def warn_broken(provider: str, cause: str, remedy: str) -> None:
    """The one warning that a broken plugin gives."""
    warn_outside(f"plugin {provider} cannot be used: {cause}{REMEDY}{remedy}", PluginWarning)


def _warn_slow(item: Found) -> None:
    who = Who(f"{item.name!r} ({item.provider})", item.block)
    warn_outside(
        f"plugin {who.provider} takes {item.seconds:.2f} s to import, wanted at most {SLOW} s, as each program that "
        f"uses dsx waits for it{REMEDY}import what is slow where it is used, and name components by "
        f'load="module:name"; `dsx plugin check {item.name}` says which modules cost the time',
        PluginWarning,
    )


def _installed(point: importlib.metadata.EntryPoint, blocked: frozenset[str]) -> Found:
    distribution = point.dist.name if point.dist else "unknown distribution"
    item = Found(point.name, distribution, (point.dist.version or "") if point.dist else "", module=point.module)
    remedy = (
        f"mend its installation: pip install --force-reinstall {distribution}; or uninstall it, or block it: "
        f"DSX_PLUGINS_BLOCK={point.name}"
    )
    return _loaded(item, point.load, what=point.value, remedy=remedy, blocked=blocked)


def _module(name: str, where: str, blocked: frozenset[str]) -> Found:
    item = Found(name, where, "", module=name)
    remedy = f"correct the module or its name, or block it: DSX_PLUGINS_BLOCK={name}"
    return _loaded(item, lambda: importlib.import_module(name), what=name, remedy=remedy, blocked=blocked)


def _loaded(item: Found, load: Callable[[], Any], *, what: str, remedy: str, blocked: frozenset[str]) -> Found:
    if item.name in blocked or item.distribution in blocked:
        return replace(item, state="blocked", cause="blocked by request", remedy=f"unblock {item.name!r}")
    start = perf_counter()
    try:
        plugin = load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (any import error makes it broken, never the program)
        cause = f"importing {what} raised {type(error).__name__}: {error}"
        return replace(item, state="broken", cause=cause, remedy=remedy, seconds=perf_counter() - start)
    return replace(item, plugin=plugin, seconds=perf_counter() - start)


def _is_known(item: object | str, found: Sequence[Found]) -> bool:
    """Whether a module or object is among these already, under whatever name."""
    if isinstance(item, str):
        return any(item == other.module for other in found)
    return any(item is plugin for plugin in _loaded_objects(found))


def _loaded_objects(found: Sequence[Found]) -> Iterator[object]:
    for item in found:
        if item.plugin is not None:
            yield item.plugin
            yield sys.modules.get(item.module)
