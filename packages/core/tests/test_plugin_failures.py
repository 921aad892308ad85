"""Each failure of a plugin is one message: which plugin, which distribution, which version, what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pluggy
import pytest
from fake_plugins import found, manager, plugin
from plugin_messages import complete

from dsx.cli.main import main
from dsx.config.root import DsxConfig
from dsx.deprecations import RemovedIn03
from dsx.errors import PluginError
from dsx.plugin import (
    OPTIMIZER,
    Component,
    Kernel,
    Score,
    Section,
    World,
    hookimpl,
)
from dsx.plugin.discovery import Found
from dsx.plugin.hooks import hookspec
from dsx.plugin.inspection import register
from dsx.plugin.manager import PluginManager, PluginWarning, plugin_manager
from dsx.registry.registry import Registry
from dsx.testing.distributions import write_distribution

CONFIG, WORLD = DsxConfig(), World()
SPEC = """
from dsx.plugin import Component, OPTIMIZER, PluginSpec, hookimpl

@hookimpl
def dsx_plugin():
    return PluginSpec(name="{name}", api={api}, summary="on disk")
"""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """``disk(name, code)`` installs a distribution; its modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "core,zero,native")
    known = set(sys.modules)

    def install(name: str, code: str, **modules: str) -> Path:
        files = {f"{name}_code.py": code, **{f"{other}.py": text for other, text in modules.items()}}
        points = {name: f"{name}_code"}
        return write_distribution(tmp_path, f"acme-{name}", modules=files, entry_points=points)

    yield install
    for module in set(sys.modules) - known:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


# What is refused when it is found -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise SystemExit(3)", "importing wrong_code raised SystemExit: 3"),
        ("", "it has no hook dsx_plugin()"),
        (SPEC.format(name="wrong", api=7), "API version 7, and this dsx-core has API version 1"),
        (SPEC.format(name="wrong", api=1) + "@hookimpl\ndef dsx_clams(): pass", "did you mean 'dsx_claims'?"),
        (SPEC.format(name="wrong", api=1) + "@hookimpl\ndef dsx_claims(model): pass", "asks for model"),
        (SPEC.format(name="wrong", api=1) + "def dsx_claims(config): pass", "dsx_claims is not marked with @hookimpl"),
        (SPEC.format(name="", api=1), "its PluginSpec has the name ''"),
        (SPEC.replace("PluginSpec(", "dict(").format(name="wrong", api=1), "gave dict, wanted a PluginSpec"),
    ],
)
def test_what_cannot_be_used_is_one_warning(disk: Callable[..., Path], code: str, words: str) -> None:
    disk("wrong", code)
    with pytest.warns(PluginWarning) as caught:
        plugins = plugin_manager()
    (message,) = (str(item.message) for item in caught)
    assert words in message
    assert complete(message, name="wrong")
    (info,) = plugins.broken()
    assert words in info.trouble
    assert Path(caught[0].filename) == Path(__file__)


def test_another_version_is_told_before_its_unknown_hooks(disk: Callable[..., Path]) -> None:
    disk("newer", SPEC.format(name="newer", api=2) + "@hookimpl\ndef dsx_of_the_future(): pass")
    with pytest.warns(PluginWarning, match="API version 2") as caught:
        plugin_manager()
    assert "dsx_of_the_future" not in str(caught[0].message)


def test_slow_import_is_one_warning(disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsx.plugin.discovery.SLOW", 0.02)
    disk("sluggish", "import time; time.sleep(0.03)\n" + SPEC.format(name="sluggish", api=1))
    with pytest.warns(PluginWarning) as caught:
        plugins = plugin_manager()
    (message,) = (str(item.message) for item in caught)
    assert complete(message, name="sluggish")
    for part in ("s to import, wanted at most 0.02 s", 'load="module:name"', "`dsx plugin check sluggish`"):
        assert part in message
    assert plugins.names == ("sluggish",)
    (seconds,) = (info.seconds for info in plugins.info() if info.state == "active")
    assert seconds >= 0.03


def test_deprecated_hook_and_argument_are_told_of_the_plugin() -> None:
    class Made:
        """A specification as a later release might have it."""

        @hookspec(warn_on_impl=RemovedIn03("made_old goes away in 0.3: use made_new"))
        def made_old(self) -> None: ...

        @hookspec(warn_on_impl_args={"mesh": RemovedIn03("mesh goes away in 0.3: use plan.axes")})
        def made_new(self, plan: Any, mesh: Any) -> None: ...

    class Plugin:
        made_old = hookimpl(lambda self: None)
        made_new = hookimpl(lambda self, mesh: None)

    machine = pluggy.PluginManager("dsx")
    machine.add_hookspecs(Made)
    with pytest.warns(RemovedIn03) as caught:
        register(machine, Found("dated", "acme-dated", "2.1", Plugin()), name="dated")
    said = sorted(str(item.message) for item in caught)
    assert said == [
        "plugin 'dated' (acme-dated 2.1): made_old goes away in 0.3: use made_new",
        "plugin 'dated' (acme-dated 2.1): mesh goes away in 0.3: use plan.axes",
    ]
    assert {Path(item.filename) for item in caught} == {Path(__file__)}


# Clashes --------------------------------------------------------------------------------------------------------------


class Shared(Section):
    """A section that two plugins own."""


def loads(value: Any) -> Callable[[], Any]:
    return lambda: value


def offers(kind: str) -> list[Any]:
    if kind == "component":
        return [Component(OPTIMIZER, "mine", load="torch.optim:SGD")]
    return [Kernel("adam_step", "mine", load=loads(print), score=lambda: Score(2, "here"))]


def clashing(kind: str) -> list[Any]:
    if kind == "name":
        return [plugin("twin"), plugin("twin")]
    if kind == "section":
        return [plugin(name, sections={"shared": Shared}) for name in ("one", "two")]
    return [plugin(name, dsx_components=lambda: offers(kind)) for name in ("one", "two")]


def pair(kind: str, **options: Any) -> PluginManager:
    first, second = clashing(kind)
    items = [found(first, distribution="acme-one"), found(second, distribution="acme-two")]
    return PluginManager(items, **options)


@pytest.mark.parametrize("kind", ["name", "section", "component", "kernel"])
def test_clash_names_both_and_what_to_do(kind: str) -> None:
    with pytest.raises(PluginError) as caught:
        Registry(pair(kind), kernels="")
    message = str(caught.value)
    assert "acme-one 1.0" in message
    assert "acme-two 1.0" in message
    assert message.count("what to do: uninstall one of the plugins, or block it: DSX_PLUGINS_BLOCK=") == 1


@pytest.mark.parametrize("kind", ["name", "section", "component", "kernel"])
def test_clash_that_is_shown_stops_nobody(kind: str) -> None:
    plugins = pair(kind, clashes="show")
    infos = plugins.info()
    assert [info.state for info in infos] == ["clash", "clash"]
    for info in infos:
        assert "acme-one" in info.cause
        assert "acme-two" in info.cause
        assert "DSX_PLUGINS_BLOCK" in info.remedy
    registry = Registry(plugins, kernels="")
    assert registry.names(OPTIMIZER) == ()
    assert registry.kernels.operations == ()


def test_same_name_twice_in_one_plugin_is_its_own_fault() -> None:
    twice = plugin("shop", dsx_components=lambda: [*offers("component"), *offers("component")])
    with pytest.raises(PluginError) as caught:
        Registry(manager(twice), kernels="")
    assert "offered by 'shop' (acme-shop 1.0), twice" in str(caught.value)
    assert complete(str(caught.value), name="shop")


def test_commands_that_must_run_show_a_clash(
    disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "zero,native")
    offer = '\n@hookimpl\ndef dsx_components():\n    yield Component(OPTIMIZER, "adam", load="torch.optim:SGD")\n'
    disk("thief", SPEC.format(name="thief", api=1) + offer)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        written = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((written.out + written.err).split())

    clash = "optimizer 'adam' is offered by 'core'"
    status, told = run("plugins")
    assert (status, "clash" in told, clash in told) == (1, True, True)
    for arguments in (("--help",), ("report",)):
        status, told = run(*arguments)
        assert status == 0
        assert clash in told
    status, told = run("config", "check", "{}", "--ranks", "1")
    assert (status, clash in told, told.count("what to do")) == (1, True, 1)
