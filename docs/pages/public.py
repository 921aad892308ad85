"""The list of what others may rely on. A change of it is a change that a user can notice: it shows in the diff."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsx.deprecations import DEPRECATIONS
from dsx.plugin import API_VERSION, hooks
from pages.hooks import example_of
from pages.hooks import names as hook_names
from pages.ours import ROOT
from pages.spelling import signature_of, stub_of

MODULES = ("dsx", "dsx.deprecations", "dsx.errors", "dsx.plugin", "dsx.testing")
"""Modules whose ``__all__`` is public."""
HEAD = f"""# Public names

Code outside this repository may rely on what stands here, and on nothing else of dsx. API version {API_VERSION}.
What a change of this page means: [CONTRIBUTING.md](../../CONTRIBUTING.md#public-names).
"""


def names_of(module: str) -> tuple[str, ...]:
    """What a module says is public."""
    return tuple(importlib.import_module(module).__all__)


def block(title: str, note: str, stubs: Iterator[str] | list[str]) -> str:
    """A heading, a sentence, and lines of code."""
    return f"\n## {title}\n\n{note}\n\n```text\n" + "\n".join(stubs) + "\n```\n"


def stubs_of(module: str, names: tuple[str, ...]) -> Iterator[str]:
    """The lines of these names of a module; what a public module gives as well is only named."""
    found = importlib.import_module(module)
    for name in names:
        thing: Any = getattr(found, name)
        home = next((public for public in MODULES if getattr(sys.modules.get(public), name, None) is thing), module)
        if home != module and module not in MODULES:
            yield f"{name}  # {home}.{name}"
        elif name == "__version__":
            yield "__version__: str"
        elif isinstance(thing, str | int) and name.isupper():
            yield f"{name} = {thing!r}"
        else:
            yield from stub_of(name, thing)


def used_trees() -> Iterator[ast.Module]:
    """Our own plugins, the examples, and the examples of hooks: what a stranger would copy."""
    folders = [folder / "src" for folder in sorted((ROOT / "packages").iterdir()) if folder.name != "core"]
    for folder in (*folders, ROOT / "native" / "src", ROOT / "examples"):
        for path in sorted(folder.rglob("*.py")):
            if not hidden(path):
                yield ast.parse(path.read_text(encoding="utf-8"))
    for name in hook_names():
        yield ast.parse(f"def {name}():\n" + "\n".join(f"    {line}" for line in example_of(name).splitlines()))


def hidden(path: Path) -> bool:
    """Whether a file is a test or was built."""
    return any(part in ("tests", "build") or part.startswith(".") for part in path.relative_to(ROOT).parts)


def building_blocks() -> dict[str, tuple[str, ...]]:
    """Module of the core -> names that those import of it, beyond the public modules; sorted."""
    found: dict[str, set[str]] = {}
    for tree in used_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dsx":
                found.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    return {module: tuple(sorted(names)) for module, names in sorted(found.items()) if module not in MODULES}


def fixtures() -> Iterator[str]:
    """The fixtures that the pytest plugin gives, read without importing it."""
    tree = ast.parse((ROOT / "packages/core/src/dsx/testing/pytest_plugin.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if any(ast.unparse(mark).startswith("pytest.fixture") for mark in node.decorator_list):
            yield f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}"


def deprecated() -> str:
    """What still works and will go, as its user is told."""
    rows = [f"- {entry.message}\n" for entry in DEPRECATIONS.values()]
    return (
        f"\n## Deprecated\n\nEach warns by the class of the release that removes it.\n\n{''.join(rows)}" if rows else ""
    )


def page() -> str:
    """The page of public names."""
    parts = [HEAD]
    for module in MODULES:
        summary = (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]
        parts.append(block(f"`{module}`", summary, stubs_of(module, names_of(module))))
    parts.append(block("Fixtures of pytest", "Of the plugin `dsx`, see [testing](../testing.md).", fixtures()))
    declared = [f"def {name}{signature_of(getattr(hooks, name))}" for name in hook_names()]
    parts.append(block("Hooks", "What a plugin may implement; see [every hook](hooks.md).", declared))
    parts.append(deprecated())
    parts.append(
        "\n# Building blocks\n\nWhat our own plugins and examples import of the core beside the above. They may be "
        "relied on in the same way; a name joins this list when one of them begins to use it.\n"
    )
    for module, names in building_blocks().items():
        summary = (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]
        parts.append(block(f"`{module}`", summary, stubs_of(module, names)))
    return "".join(parts)
