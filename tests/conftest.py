"""What the cross-package tests share: where things are, and the sources as syntax trees."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Source:
    """One Python file of a package."""

    package: str
    """The import name, such as ``dsx_zero``."""
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def package_folders() -> tuple[Path, ...]:
    folders = (*sorted((ROOT / "packages").iterdir()), ROOT / "native")
    return tuple(folder for folder in folders if (folder / "pyproject.toml").is_file())


@cache
def package_sources() -> tuple[Source, ...]:
    found = []
    for folder in package_folders():
        for path in sorted((folder / "src").rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            package = path.relative_to(folder / "src").parts[0]
            found.append(Source(package, path, text, ast.parse(text, filename=str(path))))
    return tuple(found)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def folders() -> tuple[Path, ...]:
    return package_folders()


@pytest.fixture(scope="session")
def sources() -> tuple[Source, ...]:
    return package_sources()
