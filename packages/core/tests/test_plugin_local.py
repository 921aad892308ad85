"""Plugins without packaging: named by a project's pyproject.toml, by DSX_PLUGINS, or by ``--plugin``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsx.cli.choice_of_plugins import leading
from dsx.cli.main import main
from dsx.errors import ConfigError
from dsx.plugin.discovery import local_plugins
from dsx.plugin.manager import PluginWarning, plugin_manager
from dsx.testing.distributions import write_distribution

PLUGIN = """
from dsx.plugin import Command, PluginSpec, Section, hookimpl

class Keys(Section):
    depth: int = 1

@hookimpl
def dsx_plugin():
    return PluginSpec(name="{name}", api=1, summary="local", sections={{"{name}": Keys}})

@hookimpl
def dsx_commands():
    yield Command("{name}", load="{name}.talk:say", summary="says something")
"""
TALK = "def say() -> None:\n    print('{name} speaks')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project to stand in; modules that are imported from it are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "core,zero,native")
    monkeypatch.delenv("DSX_PLUGINS", raising=False)
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def package(folder: Path, name: str) -> str:
    """A package with a plugin in it; gives the plugin's module."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / "dsx_plugin.py").write_text(PLUGIN.format(name=name))
    (place / "talk.py").write_text(TALK.format(name=name))
    return f"{name}.dsx_plugin"


def settings(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def named(*modules: str) -> str:
    return f"[tool.dsx]\nplugins = {list(modules)}\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("root", [".", "src"])
def test_module_of_the_project_is_a_plugin_from_anywhere_in_it(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = package(project / root, f"homely{len(root)}")
    settings(project, named(module))
    deep = project / "scripts" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    plugins = plugin_manager()
    (info,) = (info for info in plugins.info() if info.state == "active")
    assert info.provider == f"'{module.partition('.')[0]}' (pyproject.toml of {project})"
    assert info.provides[0] == f"section {info.name}"
    assert sys.path[-1].startswith(str(project))  # behind all that is installed
    assert run(info.name) == 0  # what it loads lazily is found as well
    assert f"{info.name} speaks" in capsys.readouterr().out


def test_the_nearest_pyproject_alone_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(project, named(package(project, "outer_one")))
    inner = project / "inner"
    inner.mkdir()
    settings(inner, "[project]\nname = 'inner'\n")
    monkeypatch.chdir(inner)
    before = list(sys.path)
    assert plugin_manager().names == ()
    assert sys.path == before


def test_environment_names_modules_of_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = package(project, "envious"), package(project, "envoy")
    monkeypatch.setenv("DSX_PLUGINS", f" {first},{second} ,{first},")
    plugins = plugin_manager()
    assert plugins.names == ("envious", "envoy")
    assert plugins.provider("envoy") == "'envoy' (DSX_PLUGINS)"


def test_each_module_counts_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(
        project, "once-dsx", modules={"oncely.py": PLUGIN.format(name="oncely")}, entry_points={"once": "oncely"}
    )
    settings(project, named("oncely", "oncely"))
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setenv("DSX_PLUGINS", "oncely")
    plugins = plugin_manager(extra=["oncely", __import__("oncely")])
    assert plugins.names == ("oncely",)
    assert plugins.provider("oncely") == "'oncely' (once-dsx 1.0)"


def test_local_plugin_is_blocked_by_its_module(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(project, named("never_imported.dsx_plugin"))
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "core,zero,native,never_imported.dsx_plugin,also_not")
    monkeypatch.setenv("DSX_PLUGINS", "also_not")
    states = {info.name: info.state for info in plugin_manager().info()}
    assert states["never_imported.dsx_plugin"] == "blocked"
    assert states["also_not"] == "blocked"


def test_module_that_is_absent_is_broken_and_says_where_it_is_named(project: Path) -> None:
    settings(project, named("absent_here.dsx_plugin"))
    with pytest.warns(PluginWarning) as caught:
        plugins = plugin_manager()
    (message,) = (str(item.message) for item in caught)
    for part in ("'absent_here.dsx_plugin'", f"pyproject.toml of {project}", "No module named", "what to do: correct"):
        assert part in message
    assert plugins.names == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.dsx\n", "found Expected ']'"),
        ("[tool.dsx]\nplugin = ['a']\n", "key 'plugin' (did you mean 'plugins'?)"),
        ("[tool.dsx]\nplugins = 'a'\n", "plugins: found 'a', wanted a list of names of modules"),
        ("[tool.dsx]\nplugins = ['a', 3]\n", "plugins: found 3, wanted names of modules"),
        ("[tool.dsx]\nplugins = ['a b']\n", "plugins: found 'a b', wanted names of modules"),
        ("[tool]\ndsx = 7\n", "tool.dsx: found 7, wanted a table"),
    ],
)
def test_bad_pyproject_is_one_clear_error(project: Path, text: str, words: str) -> None:
    file = settings(project, text)
    with pytest.raises(ConfigError) as caught:
        plugin_manager()
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert "what to do: correct" in str(caught.value)


def test_pyproject_that_is_no_text_is_one_clear_error(project: Path) -> None:
    (project / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="(?s)cannot be read.*what to do"):
        local_plugins()


def test_option_before_the_subcommand_brings_its_commands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = package(project, "optional")
    assert run(f"--plugin={module}", "optional") == 0
    assert "optional speaks" in capsys.readouterr().out
    assert run("--plugin", module, "plugins") == 0
    assert "DSX_PLUGINS" in capsys.readouterr().out
    assert "DSX_PLUGINS" not in os.environ


@pytest.mark.parametrize("command", [("plugins",), ("report",), ("config", "schema")])
def test_option_of_a_subcommand(
    project: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = package(project, f"late_{command[-1]}")
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "zero,native")
    assert run(*command, "--plugin", module) == 0
    assert f"late_{command[-1]}" in capsys.readouterr().out
    assert "DSX_PLUGINS" not in os.environ


def test_option_of_config_check_knows_the_sections(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = package(project, "checked")
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "zero,native")
    text = '{"train_batch_size": 2, "checked": {"depth": 3}}'
    assert run("config", "check", text) == 1
    assert "checked: unknown key" in capsys.readouterr().err
    assert run("config", "check", "--plugin", module, "--ranks", "2", text) == 0
    assert run("config", "explain", "--plugin", module, text) == 0
    assert "checked.depth" in capsys.readouterr().out


def test_option_reaches_the_ranks(project: Path) -> None:
    module = package(project, "aboard")
    (project / "elsewhere").mkdir()
    script = project / "elsewhere" / "train.py"
    script.write_text(
        "from dsx.plugin.manager import plugin_manager\n"
        "print('found', plugin_manager(block=['core', 'zero', 'native']).names)\n"
    )
    start = "from dsx.cli.main import main; main()"
    command = [sys.executable, "-c", start, "run", "--nproc", "2", "--plugin", module, str(script)]
    environment = {**os.environ, "DSX_PLUGINS_BLOCK": "zero,native"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("found ('aboard',)") == 2


def test_leading_options_end_at_the_subcommand() -> None:
    assert leading(["--plugin", "a", "--version", "--plugin=b", "run", "--plugin", "c"]) == ["a", "b"]
    assert leading(["--plugin"]) == []


def test_import_dsx_reads_no_file(project: Path) -> None:
    settings(project, "[tool.dsx\n")
    code = "import dsx, dsx.plugin; print(dsx.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
