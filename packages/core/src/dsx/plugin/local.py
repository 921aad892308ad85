"""Plugins without packaging: modules that a project names in its pyproject.toml, or a user in DSX_PLUGINS."""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsx.errors import ConfigError, did_you_mean

VARIABLE = "DSX_PLUGINS"
"""The environment variable that names modules, separated by commas; ``--plugin`` adds to it."""

KEYS = ("plugins",)
"""Keys of ``[tool.dsx]``."""

EXAMPLE = '[tool.dsx] plugins = ["mypkg.dsx_plugin"]'


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with a pyproject.toml, and the modules that this names as plugins."""

    folder: Path
    modules: tuple[str, ...]

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders from which the project's modules are imported."""
        return tuple(path for path in (self.folder, self.folder / "src") if path.is_dir())


def project_around(folder: Path) -> Project | None:
    """The project of the nearest pyproject.toml from here upward; ``None`` where there is none.

    Raises ConfigError where that file is no TOML, or its ``[tool.dsx]`` holds something else than names of modules.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            return Project(place, _modules(file))
    return None


def working_directory() -> Path | None:
    """Where this process stands; ``None`` where that folder is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def named_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Modules that DSX_PLUGINS names, each once, in order."""
    names = (name.strip() for name in environment.get(VARIABLE, "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def make_importable(folders: Iterable[Path]) -> None:
    """Put these folders at the end of ``sys.path`` where they are missing, so that they shadow nothing installed."""
    present = {os.path.realpath(entry or os.curdir) for entry in sys.path}
    for folder in folders:
        if os.path.realpath(folder) not in present:
            sys.path.append(str(folder))


def is_importable(module: str) -> bool:
    """Whether the package that holds this module can be found; nothing is imported."""
    top = module.partition(".")[0]
    if top in sys.modules:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _modules(file: Path) -> tuple[str, ...]:
    section = _section(file)
    if section is None:
        return ()
    if not isinstance(section, dict):
        raise _refused(file, "tool.dsx", section, "a table")
    for key in section:
        if key not in KEYS:
            meant = did_you_mean(key, KEYS)
            raise _refused(file, f"[tool.dsx] key {key!r}{meant}", section[key], f"no other key than {', '.join(KEYS)}")
    modules = section.get("plugins", [])
    if not isinstance(modules, list):
        raise _refused(file, "[tool.dsx] plugins", modules, "a list of names of modules")
    for name in modules:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise _refused(file, "[tool.dsx] plugins", name, "names of modules as after import")
    return tuple(modules)


def _section(file: Path) -> Any:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read, and dsx looks there for plugins of the project: found {error}, wanted TOML\n"
            f"    what to do: correct the file, or start from a folder outside of {file.parent}"
        ) from error
    tool = data.get("tool", {})
    return tool.get("dsx") if isinstance(tool, dict) else None


def _refused(file: Path, what: str, found: Any, wanted: str) -> ConfigError:
    return ConfigError(
        f"{file}: {what}: found {found!r:.80}, wanted {wanted}\n    what to do: correct it, as in {EXAMPLE}"
    )
