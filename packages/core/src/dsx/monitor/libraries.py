"""Libraries that only some monitors need."""

from __future__ import annotations

import importlib.util

from dsx.errors import PluginError


def need(module: str, *, monitor: str, install: str) -> None:
    """Refuse a monitor whose library is not installed; called when the monitor is asked for."""
    if importlib.util.find_spec(module) is None:
        raise PluginError(
            f"monitor {monitor!r} needs the package {install!r}, which is not installed: pip install {install}, "
            "or disable the monitor in the configuration"
        )
