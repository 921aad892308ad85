"""The command line: what it prints, its exit status, and errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pytest
import typer

from dsx.cli.lazy import add_command
from dsx.cli.main import build_app, main
from dsx.errors import PluginError
from dsx.plugin import Command

from fake_plugins import manager, plugin  # isort: skip


@pytest.fixture(autouse=True)
def _core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "zero,native")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"train_batch_size": 8, "bf16": {"enabled": "auto"}, "amp": {"enabled": False}}))
    return str(path)


def test_check_reads_and_with_ranks_plans(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check", file) == 0
    assert "can be read" in capsys.readouterr().out
    assert run("config", "check", file, "--ranks", "4") == 0
    assert "micro 2 × accumulation 1 × data replicas 4" in capsys.readouterr().out


def test_error_is_one_message_on_stderr_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check", '{"gradient_clipp1ng": 1}') == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("ConfigError: this configuration has a problem:\n  - gradient_clipp1ng")
    assert "Traceback" not in output.err


def test_check_shows_what_cannot_run(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check", file, "--ranks", "3") == 1
    assert "PlanError: batch sizes do not multiply" in capsys.readouterr().err


def test_explain_shows_values_sources_and_habits(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "explain", file, "--ranks", "2") == 0
    lines = capsys.readouterr().out.splitlines()

    def line(key: str) -> str:
        return next(line for line in lines if line.startswith(f"│ {key} "))

    assert "given" in line("train_batch_size")
    assert "auto" in line("bf16.enabled")
    assert "default" in line("gradient_clipping")
    assert "clips at 1.0" in line("gradient_clipping")
    assert "unused" in line("amp")
    assert not any("initial_scale_power" in line for line in lines)


def test_explain_all_shows_every_key(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "explain", file, "--all") == 0
    assert "initial_scale_power" in capsys.readouterr().out


def test_explain_of_what_cannot_run_still_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "explain", '{"gradient_accumulation_steps": 2}') == 1
    output = capsys.readouterr()
    assert "gradient_accumulation_steps" in output.out
    assert "no batch size is given" in output.err


def test_schema_to_stdout_and_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "schema") == 0
    printed = json.loads(capsys.readouterr().out)
    assert "gradient_clipping" in printed["properties"]
    target = tmp_path / "schema.json"
    assert run("config", "schema", str(target)) == 0
    assert json.loads(target.read_text()) == printed


def test_plugins_lists_state_and_provisions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plugins") == 0
    output = capsys.readouterr().out
    for part in ("core", "dsx-core", "active", "optimizer Adam", "store directory"):
        assert part in output


def test_report_names_machine_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report") == 0
    output = capsys.readouterr().out
    for part in ("torch", "instructions", "adam_step", "used", "dsx-core"):
        assert part in output


def test_unknown_command_has_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("confg") == 2
    assert "config" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from dsx import __version__

    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_command_of_a_plugin_is_imported_when_called(capsys: pytest.CaptureFixture[str]) -> None:
    plugins = manager(plugin("io", dsx_commands=lambda: [Command("io", load="no_such_module:app", summary="measure")]))
    app = build_app(plugins)
    with pytest.raises(SystemExit) as ended:
        app(args=["--help"])
    assert ended.value.code == 0
    assert "measure" in capsys.readouterr().out
    with pytest.raises(PluginError, match=r"command 'io' of plugin 'io' \(acme-io 1.0\) cannot be loaded"):
        app(args=["io"])


def test_command_gets_all_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    app = build_app(manager())
    add_command(app, Command("echo", load=f"{__name__}:echo", summary=""), provider="'test'")
    with pytest.raises(SystemExit):
        app(args=["echo", "--loud", "script.py", "--lr", "3", "--help"])
    assert capsys.readouterr().out == "True script.py ['--lr', '3', '--help']\n"


def echo(script: str, rest: Annotated[list[str], typer.Argument()], loud: bool = False) -> None:
    """Print what was given."""
    print(loud, script, rest)


def commands(*names: str) -> list[Command]:
    return [Command(name, load=f"{__name__}:echo", summary=f"the {name}") for name in names]


def test_command_of_two_owners_is_refused_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (
        plugin("one", dsx_commands=lambda: commands("io")),
        plugin("two", dsx_commands=lambda: commands("io", "two")),
    )
    app = build_app(manager(first, second))
    with pytest.raises(PluginError, match=r"'io' is offered by 'one' \(acme-one 1.0\) and 'two' \(acme-two 1.0\)"):
        app(args=["io"])
    with pytest.raises(SystemExit):
        app(args=["two", "script", "x"])
    assert "False script" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        app(args=["--help"])
    assert ended.value.code == 0
    assert "Refused: command 'io'" in capsys.readouterr().out


def test_command_of_the_core_stays_the_cores(capsys: pytest.CaptureFixture[str]) -> None:
    app = build_app(manager(plugin("thief", dsx_commands=lambda: commands("plugins"))))
    with pytest.raises(SystemExit) as ended:
        app(args=["plugins"])
    assert ended.value.code == 0
    assert "optimizer Adam" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        app(args=["--help"])
    assert "command 'plugins' is offered by the core and 'thief' (acme-thief 1.0)" in " ".join(
        capsys.readouterr().out.split()
    )
