"""``python -m examples.extensions``: the table of docs/extend.md, from what the files themselves say."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from dsx.plugin import Kernel
from dsx.plugin.manager import plugin_manager

FOLDER = Path(__file__).parent
PACKAGE = "examples.extensions"


def examples() -> Iterator[ModuleType]:
    """Each example, imported, by name."""
    for found in sorted(pkgutil.iter_modules([str(FOLDER)]), key=lambda found: found.name):
        if not found.name.startswith("__"):
            yield importlib.import_module(f"{PACKAGE}.{found.name}")


def kinds(module: ModuleType) -> list[str]:
    """The kinds of its components; ``kernel`` for a kernel variant."""
    offered = [item.value for item in plugin_manager(extra=[module]).components() if item.plugin == module.SPEC.name]
    return list(dict.fromkeys("kernel" if isinstance(item, Kernel) else item.kind.name for item in offered))


def brings(module: ModuleType) -> list[str]:
    """Its kinds of component, and its sections."""
    return [*kinds(module), *(f"section {key}" for key in module.SPEC.sections)]


def hooks(module: ModuleType) -> list[str]:
    """The hooks that it implements, but the one that every plugin has."""
    return [name for name in vars(module) if name.startswith("dsx_") and name != "dsx_plugin"]


def row(module: ModuleType) -> str:
    """Its line of the table: what it extends, by which hooks, in its own words, and how it is turned on."""
    said, turned_on = (module.__doc__ or "").strip().split("\n\n")
    name = module.__name__.rpartition(".")[2]
    cells = [
        f"[{name}.py](../examples/extensions/{name}.py)",
        said,
        ", ".join(f"`{name}`" for name in brings(module)) or "–",
        ", ".join(f"`{hook}`" for hook in hooks(module)),
        turned_on.removeprefix("Turned on by ").rstrip("."),
    ]
    return "| " + " | ".join(" ".join(cell.replace("``", "`").split()) for cell in cells) + " |"


def table() -> str:
    """The whole table, in Markdown."""
    head = ["| file | shows | brings | hooks | turned on by |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(row, examples())])


if __name__ == "__main__":
    print(table())
