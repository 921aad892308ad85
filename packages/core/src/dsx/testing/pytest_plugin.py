"""The pytest plugin that comes with dsx: ranks, fake worlds, isolated plugins, throw-away distributions, leak guards.

Imports torch only when asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager
    from dsx.testing.fake import FakeMesh

GUARDS = "dsx_leaks"
"""The ini option that switches the leak guards on for a whole test suite."""

SWITCHES = ("DSX_PLUGINS", "DSX_PLUGINS_BLOCK", "DSX_KERNELS")
"""Environment variables by which a user chooses plugins and kernels."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.addini(GUARDS, "fail a test that leaves variables, threads, processes or groups behind", "bool", False)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "leaks(reason): this test may leave things behind: no leak guard")


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """``ranks(function, *args, world=2, deadline=60.0, env=None)``: results of real gloo ranks, by rank."""
    from dsx.testing.ranks import run_ranks

    return run_ranks


@pytest.fixture
def fake_world() -> Iterator[Callable[..., FakeMesh]]:
    """``fake_world(size=64, rank=5, axes=())``: one place in a world of any size, in this process.

    A ``dsx.testing.FakeMesh`` whose other ranks are mirror images; further keywords are its own. Closed after the test.
    """
    from dsx.plugin.types import World
    from dsx.testing.fake import FakeMesh

    with ExitStack() as stack:

        def make(*, size: int, rank: int = 0, axes: Sequence[Any] = (), **more: Any) -> FakeMesh:
            world = World(rank=rank, size=size, local_rank=rank, local_size=size)
            mesh = FakeMesh(axes, world=world, **more)
            stack.callback(mesh.close)
            return mesh

        yield make


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PluginManager]:
    """``plugins(*extra, block=(), installed=True)``: a plugin manager of its own.

    It holds what is installed (without ``installed``, the core alone) and ``extra``: objects, modules or their names.
    The caller's environment and the pyproject.toml around the working directory have no say.
    """
    from importlib.metadata import entry_points

    from dsx.plugin.discovery import GROUP, discover, given
    from dsx.plugin.manager import PluginManager

    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)

    def make(*extra: object, block: Sequence[str] = (), installed: bool = True) -> PluginManager:
        absent = () if installed else (point.name for point in entry_points(group=GROUP) if point.name != "core")
        return PluginManager([*discover(frozenset((*block, *absent))), *(given(item) for item in extra)])

    return make


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """``distribution(name, modules={...}, entry_points={...}, version="1.0", requires=())``: as if it were installed.

    Written by ``dsx.testing.write_distribution`` into a folder of this test, which stands on ``sys.path`` and in
    PYTHONPATH until it ends; then its modules are forgotten.
    """
    from dsx.testing.distributions import top_level, write_distribution

    folder = tmp_path / "site"
    hidden: dict[str, ModuleType] = {}
    written: set[str] = set()

    def make(name: str, *, modules: Mapping[str, str], **more: Any) -> Path:
        names = set(top_level(modules))
        hidden.update(_forget(names - written))
        _forget(names & written)
        written.update(names)
        return write_distribution(folder, name, modules=modules, **more)

    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    yield make
    _forget(written)
    sys.modules.update(hidden)


def _forget(names: set[str]) -> dict[str, ModuleType]:
    """Take the modules of these top-level names out of ``sys.modules``."""
    found = [module for module in sys.modules if module.partition(".")[0] in names]
    return {module: sys.modules.pop(module) for module in found}


@pytest.fixture(autouse=True)
def _dsx_leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``dsx_leaks = true``: what was not there before a test is not there after it."""
    if not request.config.getini(GUARDS) or request.node.get_closest_marker("leaks") is not None:
        yield
        return
    from dsx.testing.leaks import Traces

    before = Traces.now()
    environment = dict(os.environ)
    yield
    left = before.left_behind()
    os.environ.clear()
    os.environ.update(environment)
    if left:
        pytest.fail("this test left behind: " + "; ".join(left), pytrace=False)
