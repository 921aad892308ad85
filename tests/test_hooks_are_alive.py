"""Every hook is declared in full, called by the core, and has the same name and arguments wherever it is spoken of."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_calls import HOOKS, Call, arguments_of, calls_in, implementations_in, python_files

from dsx.plugin import Kind, hooks, kinds
from dsx.plugin.manager import PluginManager

LINES = ("Called", "Arguments", "Returns", "Example")
WAYS = ("collect", "owner", "each")
ASIDE = ("authoring", "builtin", "testing")
"""Rooms of the core that ask plugins for their own ends, or implement hooks."""
WAY_OF = {
    "[]": "collect",
    "_collect": "collect",
    "_asked": "collect",
    "call_owner": "owner",
    "each": "each",
    "answers": "each",
}
"""How plugins are called through what the core's sources name with a hook."""


@pytest.fixture(scope="module")
def calls(sources) -> dict[str, list[Call]]:
    """Every call in the core, by hook."""
    found: dict[str, list[Call]] = {name: [] for name in HOOKS}
    for source in sources:
        if source.package == "dsx" and not any(f"/dsx/{room}/" in source.path.as_posix() for room in ASIDE):
            for call in calls_in(source.tree):
                found[call.hook].append(call)
    return found


def lines_of(name: str) -> dict[str, str]:
    """The five lines of a hook's docstring: the sentence under ``""``, each other under its word."""
    doc = inspect.getdoc(getattr(hooks, name)) or ""
    parts = re.split(r"^(\w+):", doc, flags=re.MULTILINE)
    return {"": parts[0].strip(), **{word: text.strip() for word, text in zip(parts[1::2], parts[2::2], strict=True)}}


def test_there_are_hooks() -> None:
    assert "dsx_plugin" in HOOKS
    assert "dsx_make_driver" in HOOKS


@pytest.mark.parametrize("name", HOOKS)
def test_declaration_has_its_five_lines(name: str) -> None:
    lines = lines_of(name)
    assert tuple(lines) == ("", *LINES)
    assert re.fullmatch(r"[A-Z][^\n]*\.", lines[""]), f"{name}: what for, in one sentence"
    assert all(lines[word] and (word == "Example" or "\n" not in lines[word]) for word in LINES)
    assert any(re.search(rf"[;,] {way}\b|: {way}\b|\b{way} of\b", lines["Called"]) for way in WAYS), f"{name}: {WAYS}"


@pytest.mark.parametrize("name", HOOKS)
def test_each_argument_is_explained_in_its_order(name: str) -> None:
    explained = [clause.split()[0].strip(",.") for clause in lines_of(name)["Arguments"].split(";")]
    assert explained == (list(arguments_of(name)) or ["none"])


@pytest.mark.parametrize("name", HOOKS)
def test_the_core_calls_it_with_exactly_its_arguments(name: str, calls) -> None:
    assert calls[name], f"nobody calls {name}"
    for call in calls[name]:
        assert call.passed == set(arguments_of(name)), f"{name} through {call.through}, line {call.line}"


@pytest.mark.parametrize("name", HOOKS)
def test_the_way_of_calling_is_the_one_that_is_written(name: str, calls) -> None:
    written = {way for way in WAYS if re.search(rf"\b{way}\b", lines_of(name)["Called"].partition(";")[2])}
    assert {WAY_OF[call.through] for call in calls[name]} == written


@pytest.mark.parametrize("name", [name for name in HOOKS if not name.startswith(("dsx_plugin", "dsx_make"))])
def test_the_method_of_the_manager_has_its_name_and_arguments(name: str) -> None:
    """An owner's hook has no method: only one plugin is asked, by `call_owner`."""
    method = inspect.signature(getattr(PluginManager, name.removeprefix("dsx_")))
    wanted = inspect.signature(getattr(hooks, name))
    taken = {key: value.annotation for key, value in method.parameters.items() if key != "self"}
    assert taken == {key: value.annotation for key, value in wanted.parameters.items()}


@pytest.mark.parametrize("page", ["docs/plugins.md", "docs/reference/hooks.md"])
@pytest.mark.parametrize("name", HOOKS)
def test_its_exact_arguments_stand_on_the_page(name: str, page: str, root) -> None:
    assert f"`{name}({', '.join(arguments_of(name))})`" in (root / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", HOOKS)
def test_the_table_has_its_sentence_and_its_way(name: str, root) -> None:
    (row,) = re.findall(rf"^\| `{name}\(.*$", (root / "docs" / "plugins.md").read_text("utf-8"), flags=re.MULTILINE)
    _, _, gives, way, _ = (cell.strip() for cell in row.split("|"))
    assert gives == lines_of(name)[""].replace("``", "`")
    assert way in lines_of(name)["Called"] or (name, way) == ("dsx_plugin", "collect")


def test_the_page_speaks_of_no_other_hook(root) -> None:
    for page in sorted((root / "docs").rglob("*.md")):
        named = set(re.findall(r"\bdsx_\w+(?=\()", page.read_text(encoding="utf-8")))
        assert named <= set(HOOKS), page.name


@pytest.fixture(scope="module")
def written(root, tmp_path_factory) -> list[Path]:
    """Every file that may hold a plugin, and those of a package that `dsx plugin new` writes."""
    from dsx.authoring.new import write_package

    made = write_package("some-plugin", into=tmp_path_factory.mktemp("new"))
    return [*python_files(root), *sorted(made.rglob("*.py"))]


def found_in(paths: list[Path]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for path in paths:
        for item in implementations_in(path.read_text(encoding="utf-8")):
            yield item.hook, item.takes, f"{path}:{item.line}"


def test_every_implementation_takes_what_the_hook_passes(written: list[Path]) -> None:
    seen = list(found_in(written))
    assert len(seen) > 30
    wrong = [
        f"{where}: {hook}({', '.join(takes)})"
        for hook, takes, where in seen
        if hook not in HOOKS or not set(takes) <= set(arguments_of(hook))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_recording_plugin_implements_all_in_full(root) -> None:
    found = {hook: takes for hook, takes, _ in found_in([root / "tests" / "recording_plugin.py"])}
    assert found == {name: arguments_of(name) for name in HOOKS}


@pytest.mark.parametrize(
    ("code", "hook", "takes"),
    [
        ("@hookimpl\ndef dsx_claims(config, rank): ...", "dsx_claims", ("config", "rank")),
        ("@hookimpl(tryfirst=True)\ndef dsx_claim(self, *, config): ...", "dsx_claim", ("config",)),
        ("@hookimpl(specname='dsx_report')\ndef told(): ...", "dsx_report", ()),
    ],
)
def test_the_search_sees_what_an_implementation_asks_for(code: str, hook: str, takes: tuple[str, ...]) -> None:
    (found,) = implementations_in(code)
    assert (found.hook, found.takes) == (hook, takes)


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_consumer_in_the_core(kind: Kind[object], sources) -> None:
    """A kind that nothing asks for is a promise that nothing keeps."""
    (name,) = (name for name, value in vars(kinds).items() if value is kind)
    consumers = [
        source.name
        for source in sources
        if source.package == "dsx"
        and not any(f"/dsx/{room}/" in source.path.as_posix() for room in ("plugin", *ASIDE))
        and any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(source.tree))
    ]
    assert consumers, f"nothing in the core asks for a {kind.name}"
