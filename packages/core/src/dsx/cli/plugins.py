"""``dsx plugins``: every plugin that was found, its state, and what it provides."""

from __future__ import annotations

import typer

from dsx.cli.choice_of_plugins import Plugins
from dsx.cli.main import CORE_COMMANDS
from dsx.cli.out import table
from dsx.plugin.manager import PluginInfo, plugin_manager


def plugins(plugin: Plugins = None) -> None:
    """List plugins: name, distribution, version, state, and what each provides.

    For one that is blocked, broken, or clashes with another: why, and what to do. The exit status is 1 on a clash.
    """
    found = plugin_manager(clashes="show").info(commands=[command.name for command in CORE_COMMANDS])
    table(
        "plugins",
        ("name", "distribution", "version", "state", "provides"),
        ((info.name, info.distribution, info.version, info.state, _provides(info)) for info in found),
    )
    if any(info.state == "clash" for info in found):
        raise typer.Exit(1)


def _provides(info: PluginInfo) -> str:
    return "\n".join(text for text in (info.trouble, ", ".join(info.provides)) if text)
