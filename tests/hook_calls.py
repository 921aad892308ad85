"""Finds, in sources, where hooks are called and where they are implemented, with the arguments of each."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsx.plugin import hooks
from dsx.plugin.calling import Member
from dsx.plugin.manager import PluginManager

HOOKS = tuple(sorted(name for name in vars(hooks) if name.startswith("dsx_")))
OUR_MISTAKE = "# wrong on purpose"
"""Stands on the line of an implementation that a test of failures has made wrong."""


def arguments_of(hook: str) -> tuple[str, ...]:
    """The names that the core passes."""
    return tuple(inspect.signature(getattr(hooks, hook)).parameters)


@dataclass(frozen=True)
class Call:
    """One place where the core has a hook called by its name."""

    hook: str
    through: str
    """The method that calls the plugins."""
    passed: frozenset[str]
    line: int


def calls_in(tree: ast.AST) -> Iterator[Call]:
    """Calls with the name of a hook: through a method, or of the function that a plugin has under that name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Subscript) and getattr(node.func.slice, "value", None) in HOOKS:
            yield Call(ast.literal_eval(node.func.slice), "[]", keywords_of(node), node.lineno)
        named = [value.value for value in node.args if isinstance(value, ast.Constant) and value.value in HOOKS]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        for owner in (PluginManager, Member):
            if named and hasattr(owner, method):
                own = set(inspect.signature(getattr(owner, method)).parameters)
                yield Call(named[0], method, keywords_of(node) - own, node.lineno)


def keywords_of(node: ast.Call) -> frozenset[str]:
    """The arguments of a hook, by keyword or in a dictionary."""
    keys = {ast.literal_eval(key) for part in node.args if isinstance(part, ast.Dict) for key in part.keys if key}
    return frozenset({*keys, *(keyword.arg or "**" for keyword in node.keywords)})


@dataclass(frozen=True)
class Implementation:
    """One function that a plugin offers as a hook."""

    hook: str
    takes: tuple[str, ...]
    line: int


def implementations_in(text: str) -> Iterator[Implementation]:
    """Functions under ``@hookimpl``, but those that are wrong on purpose."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef) or OUR_MISTAKE in lines[node.lineno - 1]:
            continue
        for mark in node.decorator_list:
            called = mark.func if isinstance(mark, ast.Call) else mark
            if not (isinstance(called, ast.Name) and called.id == "hookimpl"):
                continue
            named = [word.value for word in getattr(mark, "keywords", []) if word.arg == "specname"]
            hook = named[0].value if named and isinstance(named[0], ast.Constant) else node.name
            taken = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
            yield Implementation(str(hook), tuple(name for name in taken if name != "self"), node.lineno)


def python_files(root: Path) -> Iterator[Path]:
    """Every Python file of the repository that may hold a plugin, but the samples that are broken on purpose."""
    for folder in ("packages", "native", "examples", "benchmarks", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            inside = path.relative_to(root).parts
            if not any(part == "build" or part.startswith(".") or "broken" in part for part in inside[:-1]):
                yield path
