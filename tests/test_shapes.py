"""The shapes of the house: sizes of files and functions, what plugin.py holds, no hidden state."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

import pytest

FILE_SOUGHT, FILE_MOST, FUNCTION_MOST = 400, 500, 60
VAGUE_NAMES = {"utils", "util", "helpers", "misc", "common", "constants", "tools"}
MUTABLE_CALLS = {
    "dict",
    "list",
    "set",
    "defaultdict",
    "deque",
    "OrderedDict",
    "WeakKeyDictionary",
    "WeakValueDictionary",
}


def test_no_file_grows_past_its_limit(sources) -> None:
    lengths = {source.name: source.text.count("\n") for source in sources}
    for name, length in lengths.items():
        if length > FILE_SOUGHT:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn(f"{name} has {length} lines: look for a seam", stacklevel=1)
    assert not {name: length for name, length in lengths.items() if length > FILE_MOST}


def test_every_function_fits_on_a_screen(sources) -> None:
    long = [
        f"{source.name}:{node.lineno} {node.name} has {length} lines"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_MOST
    ]
    assert not long, "\n".join(long)


def test_every_file_says_what_it_holds(sources) -> None:
    silent = [source.name for source in sources if source.text.strip() and not ast.get_docstring(source.tree)]
    assert not silent, "\n".join(silent)


def test_no_file_is_named_for_nothing(sources) -> None:
    assert not [source.name for source in sources if source.path.stem in VAGUE_NAMES]


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def test_public_names_state_their_contract(sources) -> None:
    silent = [
        f"{source.name}:{node.lineno} {node.name}"
        for source in sources
        if source.path.name != "plugin.py"  # hook implementations: the hook itself is documented
        for node in public(source.tree)
        if not ast.get_docstring(node)
    ]
    assert not silent, "\n".join(silent)


def test_plugin_files_hold_a_spec_and_hooks_only(sources) -> None:
    """Whoever reads plugin.py knows what the package does to a training: no logic of its own, a few lines a hook."""
    wrong = []
    for source in (source for source in sources if source.path.name == "plugin.py"):
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef):
                marked = any(isinstance(mark, ast.Name) and mark.id == "hookimpl" for mark in node.decorator_list)
                if not marked or not node.name.startswith("dsx_"):
                    wrong.append(f"{source.name}:{node.lineno} {node.name} is no hook")
                if len(node.body) > 8:
                    wrong.append(f"{source.name}:{node.lineno} {node.name} does work that belongs in another file")
            elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.Expr | ast.If):
                wrong.append(f"{source.name}:{node.lineno} {type(node).__name__}")
    assert not wrong, "\n".join(wrong)


def mutable_state(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Module-level names bound to something that grows, unless annotated as what nobody may change."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            constant = all(name.isupper() or name == "__all__" for name in names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
            constant = names[0].isupper() and not ast.unparse(node.annotation).startswith(("dict", "list", "set"))
        else:
            continue
        value = node.value
        grows = isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp) or (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in MUTABLE_CALLS
        )
        if grows and not constant:
            yield names[0], node.lineno


def test_modules_keep_no_state(sources) -> None:
    """Two engines share a process; what one changes the other must not see."""
    found = [f"{source.name}:{line} {name}" for source in sources for name, line in mutable_state(source.tree)]
    found += [
        f"{source.name}:{node.lineno} global"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "caught"),
    [
        ("cache = {}", True),
        ("seen = set()", True),
        ("STATE: dict[str, int] = {}", True),
        ("WIDTHS: Mapping[str, int] = {'a': 1}", False),
        ("NAMES = ['a']", False),
        ("pair = (1, 2)", False),
    ],
)
def test_the_search_for_state_tells_state_from_constants(code: str, caught: bool) -> None:
    assert bool(list(mutable_state(ast.parse(code)))) is caught
