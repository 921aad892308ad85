"""Distributions on disk: one that works, one that is blocked, one that is broken; found by their entry points."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from dsx.config.load import load_config
from dsx.errors import ConfigError
from dsx.plugin.manager import PluginManager, PluginWarning, plugin_manager

GOOD = """
from dsx.plugin import PluginSpec, hookimpl

@hookimpl
def dsx_plugin():
    return PluginSpec(name="{name}", api=1, summary="on disk")
"""


def install(folder: Path, name: str, code: str, *, version: str = "3.2") -> None:
    """A distribution as an installer leaves it: a module, and metadata with an entry point."""
    (folder / f"{name}_dsx.py").write_text(code)
    metadata = folder / f"{name}_dsx-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dsx\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[dsx]\n{name} = {name}_dsx\n")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "core,zero,native")
    return tmp_path


def states(plugins: PluginManager) -> dict[str, str]:
    return {info.name: info.state for info in plugins.info() if info.distribution.endswith("-dsx")}


def test_working_blocked_and_broken_are_told_apart(disk: Path) -> None:
    install(disk, "workingone", GOOD.format(name="workingone"))
    install(disk, "blockedone", "raise SystemExit('a blocked plugin was imported')")
    install(disk, "brokenone", "import a_module_that_is_not_there")
    with pytest.warns(PluginWarning) as caught:
        plugins = plugin_manager(block=["blockedone"])
    assert states(plugins) == {"blockedone": "blocked", "brokenone": "broken", "workingone": "active"}
    assert len(caught) == 1
    message = str(caught[0].message)
    for part in ("'brokenone'", "brokenone-dsx 3.2", "ModuleNotFoundError", "a_module_that_is_not_there"):
        assert part in message


def test_broken_plugin_stops_only_who_uses_it(disk: Path) -> None:
    install(disk, "brokentwo", "raise RuntimeError('wrong driver')")
    with pytest.warns(PluginWarning):
        plugins = plugin_manager()
    assert load_config({"seed": 3}, plugins=plugins).seed == 3
    with pytest.raises(ConfigError, match="wrong driver"):
        load_config({"brokentwo": {}}, plugins=plugins)


def test_entry_point_may_name_an_object(disk: Path) -> None:
    code = GOOD.format(name="objectone").replace(
        "@hookimpl\ndef dsx_plugin():", "class Bundle:\n  @hookimpl\n  def dsx_plugin(self):"
    )
    install(disk, "objectone", code.replace("    return", "      return") + "\nbundle = Bundle()\n")
    (disk / "objectone_dsx-3.2.dist-info" / "entry_points.txt").write_text("[dsx]\nobjectone = objectone_dsx:bundle\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugin_manager().names == ("objectone",)


def test_installed_core_plugin_is_found() -> None:
    assert "core" in plugin_manager(block=["zero", "native"]).names
