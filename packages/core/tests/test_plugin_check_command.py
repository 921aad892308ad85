"""``dsx plugin``: it runs whatever a plugin does, finds those of a project, and says what to do next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsx.authoring.check import Report
from dsx.authoring.check.findings import ok, wrong
from dsx.cli.authoring import app, modules
from dsx.cli.main import main
from dsx.testing import write_distribution


def test_command_survives_a_plugin_that_ends_every_program(tmp_path: Path) -> None:
    code = {"deadly.py": "import os\nos._exit(9)\n"}
    write_distribution(tmp_path, "acme-deadly", modules=code, entry_points={"deadly": "deadly"})
    done = subprocess.run(
        [sys.executable, "-c", "from dsx.cli.main import main; main(['plugin', 'check', '--help'])"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--markdown FILE" in done.stdout


def test_unknown_name_is_one_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsx.authoring.check.run.own_names", lambda known, *, deadline: {})
    with pytest.raises(SystemExit) as caught:
        main(["plugin", "check", "acme-absent"])
    assert caught.value.code == 1
    message = capsys.readouterr().err
    assert "no plugin 'acme-absent'" in message
    assert "what to do" in message


@pytest.mark.parametrize("good", [True, False])
def test_exit_status_says_whether_anything_is_wrong(
    good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = ok("contract", "spec", "fine") if good else wrong("contract", "spec", "none | at all", "write one")
    monkeypatch.setattr(
        "dsx.cli.authoring.check_plugin", lambda name, **more: Report(name, "acme-dsx", "1.0", (finding,))
    )
    markdown = tmp_path / "found.md"
    done = CliRunner().invoke(app, ["check", "acme", "--markdown", str(markdown), "--json", str(tmp_path / "found")])
    assert done.exit_code == (0 if good else 1)
    assert "what to do" in done.stdout
    assert ("write one" in done.stdout) is not good
    assert f"1 checks of acme (acme-dsx 1.0): {0 if good else 1} wrong, 0 slow" in markdown.read_text()
    assert (tmp_path / "found").exists()


def test_plugins_of_project_and_user_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.dsx]\nplugins = ["mine.dsx_plugin"]\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSX_PLUGINS", "other.dsx_plugin")
    assert modules() == ("mine.dsx_plugin", "other.dsx_plugin")
    assert str(tmp_path / "src") in sys.path


def test_new_package_is_told_with_what_comes_next(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", "acme-first", "--into", str(tmp_path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "acme-first"
    assert "pyproject.toml" in done.stdout
    for line in (f"pip install -e {folder}", f"pytest {folder}", "dsx plugin check acme-first"):
        assert line in done.stdout
