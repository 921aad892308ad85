"""The plugins that pages speak of: those of this repository, whatever else is installed or named here."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from dsx.plugin.discovery import GROUP, discover
from dsx.plugin.manager import PluginManager

ROOT = Path(__file__).resolve().parent.parent.parent


def distributions() -> tuple[str, ...]:
    """Names of our distributions, the core first."""
    folders = [*sorted((ROOT / "packages").iterdir()), ROOT / "native"]
    files = [folder / "pyproject.toml" for folder in folders if (folder / "pyproject.toml").is_file()]
    return tuple(str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]) for file in files)


def our_plugins() -> PluginManager:
    """The installed plugins of our distributions. Local ones, and those of the environment, are not asked for."""
    wanted = set(distributions())
    points = importlib.metadata.entry_points(group=GROUP)
    foreign = frozenset(point.name for point in points if point.dist is None or point.dist.name not in wanted)
    found = [item for item in discover(foreign) if item.distribution in wanted]
    lost = sorted(wanted - {item.distribution for item in found if item.state == "active"})
    if lost:
        raise SystemExit(f"the pages speak of {', '.join(lost)}, of which no working plugin is installed: nox -s dev")
    return PluginManager(found)
