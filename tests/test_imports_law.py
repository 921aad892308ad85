"""The law of imports: a plugin imports the core; the core imports no plugin; no plugin imports another."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

CORE = "dsx"
PLANNING_KNOWS_NOTHING_OF = {"torch.distributed", "os", "time", "socket", "subprocess", "random"}


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that a tree imports, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            yield node.module or "", node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def is_ours(module: str) -> bool:
    top = module.partition(".")[0]
    return top == CORE or top.startswith(f"{CORE}_")


def test_each_package_imports_itself_and_the_core_only(sources) -> None:
    broken = []
    for source in sources:
        allowed = {CORE, source.package}
        broken += [
            f"{source.name}:{line} imports {module}"
            for module, line in imported(source.tree)
            if is_ours(module) and module.partition(".")[0] not in allowed
        ]
    assert not broken, "\n".join(broken)


def test_import_names_follow_the_folders(folders) -> None:
    for folder in folders:
        expected = CORE if folder.name == "core" else f"{CORE}_{folder.name}"
        packages = {path.name for path in (folder / "src").iterdir() if path.is_dir() and path.name.isidentifier()}
        assert packages == {expected}, f"{folder.name}: {packages}"


def test_planning_starts_nothing_and_asks_no_clock(sources) -> None:
    broken = [
        f"{source.name}:{line} imports {module}"
        for source in sources
        if "/dsx/planning/" in source.path.as_posix()
        for module, line in imported(source.tree)
        if module in PLANNING_KNOWS_NOTHING_OF
    ]
    assert not broken, "\n".join(broken)


def guarded_imports(tree: ast.AST) -> Iterator[int]:
    """Lines of imports that a ``try`` catches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(catches_import_error(handler) for handler in node.handlers):
            yield from (
                inner.lineno
                for statement in node.body
                for inner in ast.walk(statement)
                if isinstance(inner, ast.Import | ast.ImportFrom)
            )


def catches_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    named: Sequence[ast.expr] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(name, ast.Name) and name.id in ("ImportError", "ModuleNotFoundError") for name in named)


def test_nothing_is_imported_on_the_chance_that_it_is_there(sources) -> None:
    """An optional thing is a plugin, or a component with a score."""
    broken = [f"{source.name}:{line}" for source in sources for line in guarded_imports(source.tree)]
    assert not broken, "\n".join(broken)
