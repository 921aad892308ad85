"""``dsx plugins``: every plugin that was found, its state, and what it provides."""

from __future__ import annotations

from dsx.cli.out import table
from dsx.plugin.manager import plugin_manager


def plugins() -> None:
    """List plugins: name, distribution, version, state, and what each provides (or why it is broken)."""
    table(
        "plugins",
        ("name", "distribution", "version", "state", "provides"),
        (
            (info.name, info.distribution, info.version, info.state, ", ".join(info.provides) or info.cause)
            for info in plugin_manager().info()
        ),
    )
