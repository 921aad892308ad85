"""docs/testing.md: its Python is one test file, which passes under the settings that the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import dsx.testing
from dsx.testing import pytest_plugin


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_pass_as_one_file(root, tmp_path: Path) -> None:
    text = (root / "docs" / "testing.md").read_text(encoding="utf-8")
    python = "\n\n".join(blocks(text, "python"))
    (tmp_path / "test_page.py").write_text(python, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("".join(blocks(text, "ini")) + "filterwarnings = error\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=250)
    count = python.count("\ndef test_")
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_every_check_and_fixture_is_on_the_page(root) -> None:
    text = (root / "docs" / "testing.md").read_text(encoding="utf-8")
    assert [name for name in dsx.testing.__all__ if name not in text] == []
    fixtures = re.findall(r"^@pytest\.fixture\ndef (\w+)", Path(pytest_plugin.__file__).read_text(), flags=re.MULTILINE)
    assert len(fixtures) == 4
    assert [name for name in fixtures if f"| `{name}` |" not in text] == []
