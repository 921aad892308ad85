"""docs/plugins.md keeps its word: its code runs, and what it says of failures is what is said."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dsx
from dsx.errors import PlanError
from dsx.plugin import PluginSpec, World, hookimpl
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry
from dsx.testing import check_variants, write_distribution

CONFIG = {"train_micro_batch_size_per_gpu": 2}
TRAINS = """
import torch, dsx
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "acme"}}
engine, optimizer, *_ = dsx.initialize(model=torch.nn.Linear(3, 1), config=config)
name = next(info.name for info in engine.plan.plugins if "optimizer acme" in info.provides)
print(f"{name}: {type(optimizer).__name__} {optimizer.param_groups[0]['lr']}")
"""


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "plugins.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def blocks(page: str) -> list[str]:
    return re.findall(r"^```(?:toml|python)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


def named(blocks: list[str], name: str) -> list[str]:
    """The blocks that begin with the name of their file."""
    return [block for block in blocks if block.startswith(f"# {name}\n")]


def block_with(blocks: list[str], words: str) -> str:
    (found,) = (block for block in blocks if words in block)
    return found


def files(blocks: list[str]) -> dict[str, str]:
    """The package of the page, by path."""
    paths = ("acme_dsx/plugin.py", "acme_dsx/optimizer.py")
    return {"acme_dsx/__init__.py": '"""Acme."""\n', **{path: named(blocks, path)[0] for path in paths}}


def write_project(folder: Path, blocks: list[str]) -> Path:
    """The package as plain files in a folder."""
    for path, text in files(blocks).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def child(*arguments: str, cwd: Path, **environment: str) -> str:
    """What a process of its own prints; it must end well."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DSX_", "PYTHONPATH"))}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env={**kept, **environment, "COLUMNS": "200"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_package_is_found_and_trains(blocks: list[str], tmp_path: Path) -> None:
    project = tomllib.loads(named(blocks, "pyproject.toml")[0])["project"]
    folder = write_distribution(
        tmp_path / "site",
        project["name"],
        modules=files(blocks),
        entry_points=project["entry-points"]["dsx"],
        version=project["version"],
        requires=project["dependencies"],
    )
    assert "acme: Acme 0.5" in child("-c", TRAINS, cwd=tmp_path, PYTHONPATH=str(folder))


def test_a_module_of_a_project_is_found_without_packaging(blocks: list[str], tmp_path: Path) -> None:
    folder = write_project(tmp_path, blocks)
    (folder / "pyproject.toml").write_text(named(blocks, "pyproject.toml")[1], encoding="utf-8")
    (folder / "inner").mkdir()
    assert "acme: Acme 0.5" in child("-c", TRAINS, cwd=folder / "inner")


def test_a_module_can_be_named_on_the_command_line_and_in_the_environment(blocks: list[str], tmp_path: Path) -> None:
    folder = write_project(tmp_path, blocks)
    plugin = files(blocks)["acme_dsx/plugin.py"]
    other = plugin.replace('"acme"', '"other"')
    (folder / "acme_dsx" / "other.py").write_text(other, encoding="utf-8")
    listed = child("-m", "dsx", "--plugin", "acme_dsx.plugin", "plugins", cwd=folder, DSX_PLUGINS="acme_dsx.other")
    assert "optimizer acme" in listed
    assert "optimizer other" in listed


def test_a_module_can_be_given_in_code(blocks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(write_project(tmp_path, blocks)))
    names: dict[str, Any] = {}
    exec(compile(block_with(blocks, "plugins=[acme_dsx.plugin]"), "<docs/plugins.md>", "exec"), names)
    assert type(names["engine"].optimizer).__name__ == "Acme"
    names["engine"].close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_dsx"]:
        monkeypatch.delitem(sys.modules, name)


def plugin_of(code: str) -> ModuleType:
    """A plugin whose hooks are those of a block."""
    module = ModuleType("acme_dsx")
    exec(compile(code, "<docs/plugins.md>", "exec", dont_inherit=True), vars(module))
    module.dsx_plugin = hookimpl(lambda: PluginSpec(name="acme", api=1, summary="of the page"))  # type: ignore[attr-defined]
    return module


def test_the_claims_are_settled(blocks: list[str]) -> None:
    plugins = plugin_manager(extra=[plugin_of(block_with(blocks, "def dsx_claims"))])
    assert dsx.make_plan(CONFIG, world=World(), plugins=plugins).owners["optim"] == "acme"
    config: dict[str, Any] = {**CONFIG, "zero_optimization": {"stage": 2}}
    with pytest.raises(PlanError, match="optim can be set by one plugin only"):
        dsx.make_plan(config, world=World(), plugins=plugins)


def test_the_kernel_is_the_definition_of_its_operation(blocks: list[str]) -> None:
    registry = Registry(plugin_manager(extra=[plugin_of(block_with(blocks, "def descend"))]))
    assert registry.kernels.chosen("acme_step") == "torch"
    assert check_variants("acme_step", registry=registry) == []  # there is no other variant to compare with it


def test_every_block_is_run(blocks: list[str]) -> None:
    files = [block for block in blocks if re.match(r"# \S+\.(py|toml)\n", block)]
    words = ("plugins=[acme_dsx.plugin]", "def dsx_claims", "def descend")
    assert len(blocks) == len(files) + len(words)
    assert all(block_with(blocks, word) for word in words)


def spoken(text: str) -> str:
    """All that a file says: its string constants, with a gap for each value that is put in."""
    strings = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(str(node.value) for node in strings)


def test_what_is_said_of_failures_is_what_is_said(page: str, sources: Any) -> None:
    said = "\n".join(spoken(source.text) for source in sources if source.package == "dsx")
    table = page.partition("| what goes wrong |")[2].partition("\n\n")[0]
    quoted = [re.findall(r"`([^`]+)`", line.split("|")[2]) for line in table.splitlines()[2:]]
    assert len(quoted) > 10
    assert all(quoted)
    lost = [part.strip() for row in quoted for text in row for part in text.split("…") if part.strip() not in said]
    assert not lost
