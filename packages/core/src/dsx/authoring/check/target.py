"""Which plugin is meant, told by metadata alone: nothing of a plugin is imported here."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsx.errors import PluginError, did_you_mean
from dsx.plugin.discovery import GROUP


@dataclass(frozen=True, slots=True)
class Target:
    """One plugin: the name of its entry point, what that loads, and who ships it."""

    name: str
    load: str
    """``"module"`` or ``"module:attribute"``."""
    distribution: str = ""
    """Empty where a module was named that no entry point loads."""
    version: str = ""

    @property
    def module(self) -> str:
        """The module that is imported."""
        return self.load.partition(":")[0].strip()

    @property
    def top(self) -> str:
        """The outermost package or module."""
        return self.module.partition(".")[0]

    @property
    def given(self) -> str:
        """Where it comes from, for messages."""
        return " ".join(part for part in (self.distribution, self.version) if part) or f"module {self.load}"

    def plain(self) -> dict[str, str]:
        """As JSON data."""
        return asdict(self)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Target:
        """What `plain` gave."""
        return cls(**{key: str(value) for key, value in data.items()})


def installed() -> tuple[Target, ...]:
    """Every plugin that an entry point names, sorted; none is imported."""
    points = set(importlib.metadata.entry_points(group=GROUP))
    found = (
        Target(
            point.name,
            f"{point.module}:{point.attr}" if point.attr else point.module,
            point.dist.name if point.dist else "",
            point.dist.version if point.dist else "",
        )
        for point in points
    )
    return tuple(sorted(found, key=lambda target: (target.name, target.load)))


def named(name: str, known: tuple[Target, ...]) -> tuple[Target, ...]:
    """Those of this entry point, of this distribution, or of this module; nothing where the name says none of them."""
    return (
        tuple(target for target in known if target.name == name)
        or tuple(target for target in known if target.distribution and normal(target.distribution) == normal(name))
        or tuple(target for target in known if name in (target.load, target.module))
        or ((Target(name, name),) if is_module(name) else ())
    )


def unknown(name: str, known: tuple[Target, ...], own_names: Mapping[str, Target]) -> PluginError:
    """The error for a name that nothing here bears."""
    names = sorted({*own_names, *(target.name for target in known), *(target.distribution for target in known)} - {""})
    return PluginError(
        f"no plugin {name!r}{did_you_mean(name, names)}: found {', '.join(names) or 'no plugin'}, wanted a "
        f"distribution, an entry point of the group {GROUP}, a plugin's own name or a module\n"
        f"    what to do: correct the name, or install the plugin (pip install -e FOLDER)"
    )


def normal(name: str) -> str:
    """A distribution's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_module(name: str) -> bool:
    """Whether a module of this name can be imported; of its packages none is."""
    parts = re.split(r"[.:]", name)
    if not all(part.isidentifier() for part in parts):
        return False
    top, *rest = name.partition(":")[0].split(".")
    spec = top_spec(top)
    if spec is None:
        return False
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for part in rest:
        if any((folder / f"{part}.py").is_file() for folder in folders):
            return part == rest[-1]
        folders = [folder / part for folder in folders if (folder / part).is_dir()]
    return not rest or any((folder / "__init__.py").is_file() for folder in folders)


def top_spec(top: str) -> ModuleSpec | None:
    """Where an outermost package or module lies; finding it imports nothing."""
    try:
        return find_spec(top)
    except (ImportError, ValueError):
        return None


def sources(top: str) -> list[Path]:
    """The Python files of an outermost package or module."""
    spec = top_spec(top)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
    return sorted(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.py"))
