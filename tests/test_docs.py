"""The pages keep their word: links lead somewhere, named commands and sessions exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def pages(root):
    yield from (root / name for name in ("README.md", "CONTRIBUTING.md"))
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "packages").glob("*/README.md"))
    yield root / "native" / "README.md"
    yield from sorted((root / "examples").rglob("README.md"))


def test_links_lead_somewhere(root) -> None:
    lost = []
    for page in pages(root):
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                lost.append(f"{page.relative_to(root)}: {target}")
    assert not lost, "\n".join(lost)


def test_named_sessions_exist(root) -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (root / "noxfile.py").read_text(), flags=re.MULTILINE))
    for page in (*pages(root), root / ".ci" / "run"):
        for command in re.findall(r"\bnox -s ((?:[\w.()]+ ?)+)", page.read_text(encoding="utf-8")):
            named = {word.partition("(")[0] for word in command.split()} - {"NAME"}
            assert named <= sessions, f"{page.relative_to(root)}: nox -s {command}"


def test_every_package_has_a_line_in_the_table(root, folders) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    for folder in folders:
        name = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]
        assert re.search(rf"^\| \[?`{name}`", readme, flags=re.MULTILINE), name


def test_generated_pages_are_fresh(root) -> None:
    """They stand as the code says when every package is installed; `nox -s docs` writes them."""
    command = [sys.executable, str(root / "docs" / "generate.py"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_decisions_are_numbered_and_indexed(root) -> None:
    decisions = sorted((root / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    index = (root / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert all(path.name in index for path in decisions)
