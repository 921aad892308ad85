"""Every hook is declared in full, called by the core and explained to plugin authors."""

from __future__ import annotations

import inspect
import re

import pytest

from dsx.plugin import hooks

HOOKS = sorted(name for name in vars(hooks) if name.startswith("dsx_"))
LINES = ("Called:", "Arguments:", "Returns:", "Example:")


def test_there_are_hooks() -> None:
    assert "dsx_plugin" in HOOKS
    assert "dsx_make_driver" in HOOKS


@pytest.mark.parametrize("name", HOOKS)
def test_declaration_has_its_five_lines(name: str) -> None:
    doc = inspect.getdoc(getattr(hooks, name)) or ""
    assert re.match(r"[A-Z].*\.\n\n", doc), f"{name}: what for, in one sentence"
    assert all(f"\n{line}" in doc for line in LINES), f"{name}: {LINES}"


@pytest.mark.parametrize("name", HOOKS)
def test_the_core_calls_it(name: str, sources) -> None:
    callers = [
        source.name
        for source in sources
        if source.package == "dsx"
        and source.path.name not in ("hooks.py", "plugin.py")
        and re.search(rf"\b{name}\b", source.text)
    ]
    assert callers, f"nobody calls {name}"


@pytest.mark.parametrize("name", HOOKS)
def test_its_exact_arguments_stand_in_the_guide(name: str, root) -> None:
    arguments = ", ".join(inspect.signature(getattr(hooks, name)).parameters)
    assert f"`{name}({arguments})`" in (root / "docs" / "plugins.md").read_text(encoding="utf-8")
