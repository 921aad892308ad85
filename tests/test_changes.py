"""News fragments: one sentence each, named for what they are about."""

from __future__ import annotations

import re
import tomllib


def test_each_fragment_is_named_and_one_sentence(root) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in settings["type"])
    for path in (root / settings["directory"]).iterdir():
        if path.name == "README.md":
            continue
        assert re.fullmatch(rf"(\d+|\+[a-z0-9-]+)\.({kinds})(\.\d+)?\.md", path.name), path.name
        text = path.read_text(encoding="utf-8").strip()
        assert text.endswith("."), path.name
        assert "\n\n" not in text, f"{path.name}: one sentence, one paragraph"


def test_there_is_news(root) -> None:
    fragments = [path for path in (root / "changes").glob("*.md") if path.name != "README.md"]
    assert fragments or (root / "CHANGELOG.md").is_file()
