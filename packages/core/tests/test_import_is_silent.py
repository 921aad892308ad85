"""``import dsx`` does nothing: no output, no device, no plugin, no slow module; a child may be forked after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsx.testing import write_distribution

PROBE = """
import json, os, sys
import torch
before = set(sys.modules)
import dsx
version = dsx.__version__
names = dir(dsx)
new = sorted(set(sys.modules) - before)
child = os.fork()
if child == 0:
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps({"new": new, "child": status, "cuda": torch.cuda.is_initialized(), "names": names,
                  "groups": torch.distributed.is_available() and torch.distributed.is_initialized()}))
"""


@pytest.fixture(scope="module")
def probe() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    result: dict[str, object] = json.loads(line)
    return result


def test_nothing_is_printed_started_or_initialised(probe: dict[str, object]) -> None:
    """B91: no device context, no output, a fork works."""
    assert probe["child"] == 7
    assert probe["cuda"] is False
    assert probe["groups"] is False


def test_only_dsx_itself_is_imported(probe: dict[str, object]) -> None:
    """B91: no plugin, no pydantic, no part of torch that torch has not brought itself."""
    assert probe["new"] == ["dsx"]


LOUD = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
from dsx.plugin import PluginSpec, hookimpl


@hookimpl
def dsx_plugin():
    return PluginSpec(name="loud", api=1, summary="leaves a file when it is imported")
"""


def test_no_installed_plugin_is_imported(tmp_path: Path) -> None:
    """Only who asks for the plugins imports them: not ``import dsx``, its names, nor what a plugin author imports."""
    write_distribution(tmp_path, "loud", modules={"loud/plugin.py": LOUD}, entry_points={"loud": "loud.plugin"})
    mark, silent = tmp_path / "loud" / "imported", "import dsx, dsx.plugin, dsx.testing; dsx.initialize, dir(dsx)"
    for code, loud in ((silent, False), ("import dsx.plugin.manager as m; m.plugin_manager()", True)):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, timeout=120, check=True)
        assert mark.exists() is loud, code


def test_front_doors_are_listed(probe: dict[str, object]) -> None:
    names = probe["names"]
    assert isinstance(names, list)
    assert {"initialize", "construct", "init_distributed", "Engine", "make_plan"} <= set(names)


def test_unknown_attribute_is_an_attribute_error() -> None:
    import dsx

    with pytest.raises(AttributeError, match="no attribute 'initialise'"):
        dsx.initialise  # noqa: B018
