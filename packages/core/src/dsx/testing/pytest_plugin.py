"""The pytest plugin that comes with dsx: ranks, isolated plugins, leak guards. Imports torch only when asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager

GUARDS = "dsx_leaks"
"""The ini option that switches the leak guards on for a whole test suite."""


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
def plugins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PluginManager]:
    """``plugins(*extra, block=())``: a plugin manager of its own, untouched by the caller's environment."""
    from dsx.plugin.manager import plugin_manager

    monkeypatch.delenv("DSX_PLUGINS_BLOCK", raising=False)
    monkeypatch.delenv("DSX_KERNELS", raising=False)

    def make(*extra: object, block: tuple[str, ...] = ()) -> PluginManager:
        return plugin_manager(extra=extra, block=block)

    return make


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
