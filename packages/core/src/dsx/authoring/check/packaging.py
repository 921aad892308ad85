"""The contract of a package: its metadata, its types, and whom it imports. Read from files; nothing is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsx.authoring.check.findings import Finding, judged, not_applicable, ok, wrong
from dsx.authoring.check.target import Target, normal, sources, top_spec
from dsx.plugin.discovery import GROUP

AREA = "contract"
CORE = "dsx-core"


def packaging(target: Target, others: Sequence[Target]) -> Iterator[Finding]:
    """What can be said of the plugin's package before a line of it runs."""
    if target.distribution:
        yield ok(AREA, "metadata", f"{target.given}, entry point {target.name} = {target.load} in the group {GROUP}")
        yield requirement(target)
    else:
        yield not_applicable(AREA, "metadata", f"{target.load} was named as a module; no distribution brings it")
    yield typed(target)
    yield imports(target, others)


def requirement(target: Target) -> Finding:
    """Whether the distribution says that it needs the core."""
    needed = importlib.metadata.requires(target.distribution) or []
    plain = [line for line in needed if "extra ==" not in line]
    names = [normal(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in plain]
    if normal(target.distribution) == CORE:
        return not_applicable(AREA, "requires dsx-core", "it is the core")
    if CORE in names:
        return ok(AREA, "requires dsx-core", plain[names.index(CORE)])
    found = ", ".join(plain) or "nothing"
    return wrong(
        AREA,
        "requires dsx-core",
        f"{target.distribution} requires {found}, wanted {CORE} among it",
        f'add "{CORE}" to dependencies in its pyproject.toml',
    )


def typed(target: Target) -> Finding:
    """Whether type checkers may believe the package's annotations."""
    spec = top_spec(target.top)
    if spec is None:
        found = f"no package {target.top} on sys.path, wanted the one of {target.load}"
        return wrong(AREA, "py.typed", found, "install it again")
    if spec.submodule_search_locations is None:
        return not_applicable(AREA, "py.typed", f"{target.top} is a single module, which cannot carry the file")
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    if any((folder / "py.typed").is_file() for folder in folders):
        return ok(AREA, "py.typed", f"in {target.top}")
    if not target.distribution:
        return not_applicable(AREA, "py.typed", f"{target.top} is no package that others install")
    return wrong(
        AREA,
        "py.typed",
        f"no file py.typed in {target.top}, wanted one: without it no type checker believes its annotations",
        "add the empty file, and name it in the package data",
    )


def imports(target: Target, others: Sequence[Target]) -> Finding:
    """The law of imports: a plugin imports the core and itself, never another plugin."""
    tops = {other.top: other for other in others if other.top != target.top and not _together(target, other)}
    tops.pop("dsx", None)
    files = sources(target.top)
    problems = [
        f"{file.name}:{line} imports {module}, which is of {tops[module.partition('.')[0]].given}"
        for file in files
        for module, line in _imported(file)
        if module.partition(".")[0] in tops
    ]
    return judged(
        AREA,
        "law of imports",
        problems,
        good=f"{len(files)} files import no other plugin",
        remedy="agree through the core's vocabulary: a mesh axis, a claim, a family, or a component by its name",
    )


def _together(target: Target, other: Target) -> bool:
    return bool(target.distribution) and other.distribution == target.distribution


def _imported(file: Path) -> Iterator[tuple[str, int]]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # importing it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno
