"""The page of components: what our distributions register, by kind, and every kernel variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dsx.plugin import KINDS, Component, Kernel
from dsx.plugin.manager import PluginManager, Tagged
from pages.ours import our_plugins
from pages.spelling import cell

HEAD = """# Every component

What our distributions register, by kind; a name is found in any case. What else is installed: `dsx plugins`.
[What each kind is](kinds.md)
"""


def source_of(load: str | Callable[[], Any]) -> str:
    """What is imported when the component is asked for."""
    return f"`{load}`" if isinstance(load, str) else f"made by `{load.__module__}.{load.__qualname__}`"


def distribution_of(plugins: PluginManager, plugin: str) -> str:
    """The distribution that a plugin comes with."""
    return next(info.distribution for info in plugins.info() if info.name == plugin)


def by_kind(plugins: PluginManager) -> dict[str, list[Tagged[Component[Any]]]]:
    """Components by the name of their kind, the core's kinds first, sorted by name."""
    found: dict[str, list[Tagged[Component[Any]]]] = {kind.name: [] for kind in KINDS}
    for item in plugins.components():
        if isinstance(item.value, Component):
            found.setdefault(item.value.kind.name, []).append(Tagged(item.plugin, item.value))
    return {kind: sorted(items, key=lambda item: item.value.name.lower()) for kind, items in found.items()}


def kernels(plugins: PluginManager) -> Iterator[str]:
    """The rows of kernel variants, by operation, the reference first."""
    offered = [Tagged(item.plugin, item.value) for item in plugins.components() if isinstance(item.value, Kernel)]
    for item in sorted(offered, key=lambda item: (item.value.operation, item.value.variant != "torch")):
        kernel = item.value
        distribution = distribution_of(plugins, item.plugin)
        yield f"| `{kernel.operation}` | `{kernel.variant}` | {distribution} | {source_of(kernel.load)} |\n"


def page() -> str:
    """The page of components."""
    plugins = our_plugins()
    parts = [HEAD]
    for kind, items in by_kind(plugins).items():
        parts.append(f"\n## {kind}\n\n| name | also | distribution | what it is | loads |\n|---|---|---|---|---|\n")
        for item in items:
            component = item.value
            also = ", ".join(f"`{alias}`" for alias in component.aliases)
            parts.append(
                f"| `{component.name}` | {also} | {distribution_of(plugins, item.plugin)} | "
                f"{cell(component.summary)} | {source_of(component.load)} |\n"
            )
    parts.append("\n## Kernels\n\n| operation | variant | distribution | loads |\n|---|---|---|---|\n")
    return "".join([*parts, *kernels(plugins)])
