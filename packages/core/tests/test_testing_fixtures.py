"""What pytest gets from dsx: throw-away distributions, fake worlds, isolated plugins; and the kit's own manners."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsx.testing
from dsx.plugin import OPTIMIZER, MeshAxis
from dsx.registry.registry import Registry
from dsx.testing import FakeMesh, write_distribution

pytest_plugins = ["pytester"]

PLUGIN = """
from dsx.plugin import OPTIMIZER, Component, PluginSpec, hookimpl

@hookimpl
def dsx_plugin():
    return PluginSpec(name="acme", api=1, summary="an optimizer")

@hookimpl
def dsx_components():
    yield Component(OPTIMIZER, "sophia", load="acme.sophia:Sophia")
"""
ACME = {"acme/__init__.py": "", "acme/plugin.py": PLUGIN, "acme/sophia.py": "class Sophia: pass\n"}


def test_every_name_is_exported_and_nothing_is_imported_for_it() -> None:
    assert set(dsx.testing.__all__) == set(dsx.testing._WHERE)
    assert all(getattr(dsx.testing, name) is not None for name in dsx.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'check_nothing'"):
        _ = dsx.testing.check_nothing
    code = "import sys, dsx.testing, dsx.testing.pytest_plugin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_checks_speak_under_python_without_asserts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dsx.testing import check_partitioner\n"
        "try:\n    check_partitioner(lambda layers, *, parts: [0, 1])\n"
        "except AssertionError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-O", str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("of no layer in 1 parts: the last border is 1, wanted 0: [0, 1]\n")


def test_the_kit_has_no_assert_statement() -> None:
    """They would be gone under python -O."""
    folder = Path(dsx.testing.__file__ or "").parent
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")}
    assert [name for name, tree in trees.items() if any(isinstance(node, ast.Assert) for node in ast.walk(tree))] == []


def test_a_distribution_is_found_here_and_in_children(distribution: Callable[..., Path], plugins: Any) -> None:
    folder = distribution(
        "Acme-DSX", version="2.3", modules=ACME, entry_points={"acme": "acme.plugin"}, requires=["dsx-core>=0.1"]
    )
    found = importlib.metadata.distribution("acme-dsx")
    assert (found.version, found.requires, found.metadata["Name"]) == ("2.3", ["dsx-core>=0.1"], "Acme-DSX")
    assert {str(file) for file in found.files or ()} >= {"acme/plugin.py", "acme_dsx-2.3.dist-info/RECORD"}
    assert all(file.locate().is_file() for file in found.files or ())
    (info,) = [info for info in plugins().info() if info.name == "acme"]
    assert (info.distribution, info.version, info.state) == ("Acme-DSX", "2.3", "active")
    assert Registry(plugins(installed=False, block=())).has(OPTIMIZER, "sophia") is False
    assert Registry(plugins()).get(OPTIMIZER, "Sophia").__module__ == "acme.sophia"
    code = "import acme.plugin, importlib.metadata as m; print(acme.plugin.__file__, m.version('acme-dsx'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == f"{folder}/acme/plugin.py 2.3\n"


def test_a_distribution_is_gone_after_its_test() -> None:
    assert "acme" not in {name.partition(".")[0] for name in sys.modules}
    assert not [entry for entry in sys.path if entry.endswith("/site")]
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("acme-dsx")


def test_a_distribution_can_be_written_anew_beside_others(distribution: Callable[..., Path]) -> None:
    distribution(
        "acme", modules={"acme.py": "VALUE = 1\n"}, entry_points={"one": "acme", "dsx.other/two": "acme:VALUE"}
    )
    distribution("wile", modules={"wile/deep/__init__.py": "VALUE = 3\n"})
    assert importlib.import_module("acme").VALUE == 1
    assert importlib.import_module("wile.deep").VALUE == 3
    distribution("acme", version="2.0", modules={"acme.py": "VALUE = 20\n"})
    assert importlib.import_module("acme").VALUE == 20
    assert importlib.metadata.version("acme") == "2.0"
    assert not [point for point in importlib.metadata.entry_points(group="dsx") if point.name == "one"]


def test_a_module_stays_in_its_folder(tmp_path: Path) -> None:
    for path in ("../acme.py", "/acme.py", ""):
        with pytest.raises(ValueError, match="leaves the folder"):
            write_distribution(tmp_path / "site", "acme", modules={path: ""})
    assert list(tmp_path.iterdir()) == []


def test_fake_worlds_are_closed_after_the_test(fake_world: Callable[..., FakeMesh]) -> None:
    axes = (MeshAxis("data", 8), MeshAxis("tensor", 8))
    mesh = fake_world(size=64, rank=5, axes=axes)
    assert (mesh.world.rank, mesh.group("tensor").ranks) == (5, tuple(range(8)))
    assert fake_world(size=3).group("data").size == 3


def test_isolated_plugins_do_not_see_the_callers_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dsx]\nplugins = ["no_such_module"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSX_PLUGINS", "no_such_module_either")
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "core")
    plugins = request.getfixturevalue("plugins")
    assert {info.name: info.state for info in plugins(installed=False).info()}["core"] == "active"
    assert "no_such_module" not in {info.name for info in plugins().info()}
    assert not {"DSX_PLUGINS", "DSX_PLUGINS_BLOCK"} & os.environ.keys()


def test_fixtures_leave_nothing_behind(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndsx_leaks = true\n")
    pytester.makepyfile(
        """
        import os, sys

        def test_all(ranks, plugins, fake_world, distribution):
            distribution("acme", modules={"acme.py": "X = 1"}, entry_points={"acme": "acme"})
            import acme
            assert fake_world(size=4, rank=3).group("data").rank == 3
            assert "site" in os.environ["PYTHONPATH"]

        def test_after():
            assert "acme" not in sys.modules and "site" not in os.environ.get("PYTHONPATH", "")
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)
