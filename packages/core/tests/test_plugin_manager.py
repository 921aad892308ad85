"""Plugins: what is refused, how results are tagged and guarded, that order means nothing."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
from fake_plugins import found, manager, plugin

from dsx.config.root import DsxConfig
from dsx.errors import ConfigError, PlanError, PluginError
from dsx.plugin import API_VERSION, Claim, Component, Kind, MeshAxis, ReportRow, Section, World, hookimpl, sets
from dsx.plugin.inspection import hook_names
from dsx.plugin.manager import PluginManager, PluginWarning, plugin_manager
from dsx.registry.registry import Registry

ANY: Kind[Any] = Kind("thing", "anything")
CONFIG, WORLD = DsxConfig(), World()


class Settings(Section):
    """A section."""


def broken(module: Any) -> str:
    """The cause for which this plugin alone is broken."""
    with pytest.warns(PluginWarning) as caught:
        (info,) = manager(module).info()
    assert len(caught) == 1
    assert info.state == "broken"
    assert info.provider in str(caught[0].message)
    return info.cause


def test_results_are_typed_and_tagged() -> None:
    def claims(config: DsxConfig) -> Iterator[Claim]:
        yield sets("grad", "sharded", why="stage=2")

    tagged = manager(plugin("zero", dsx_claims=claims), plugin("idle")).claims(CONFIG, WORLD)
    assert [(item.plugin, item.value.resource) for item in tagged] == [("zero", "grad")]


def test_order_of_finding_means_nothing() -> None:
    def axis(name: str) -> Any:
        return lambda: [MeshAxis(name, 2)]

    modules = [plugin(name, dsx_mesh_axes=axis(name)) for name in ("b", "a", "c")]
    forward, backward = manager(*modules), manager(*reversed(modules))
    assert forward.mesh_axes(CONFIG, WORLD) == backward.mesh_axes(CONFIG, WORLD)
    assert [item.plugin for item in forward.mesh_axes(CONFIG, WORLD)] == ["a", "b", "c"]
    assert forward.info() == backward.info()


def test_hook_may_take_fewer_arguments_or_none() -> None:
    modules = [
        plugin(
            "all", dsx_claims=lambda config, world: [sets("grad", config.gradient_allreduce_op, why=str(world.size))]
        ),
        plugin("none", dsx_claims=lambda: None),
    ]
    (only,) = manager(*modules).claims(CONFIG, World(size=3))
    assert (only.value.states, only.value.why) == (("mean",), "3")


def test_another_api_version_is_refused_with_both_numbers() -> None:
    cause = broken(plugin("old", api=API_VERSION + 6))
    assert f"API version {API_VERSION + 6}" in cause
    assert f"API version {API_VERSION};" in cause


def test_unknown_hook_is_refused_with_its_nearest() -> None:
    cause = broken(plugin("typo", dsx_claim=lambda config: []))
    assert "dsx_claim(config) is not a hook of dsx (did you mean 'dsx_claims'?)" in cause


def test_unknown_argument_is_refused_with_both_signatures() -> None:
    cause = broken(plugin("greedy", dsx_claims=lambda config, engine: []))
    assert "dsx_claims(config, engine) asks for engine" in cause
    assert "dsx_claims(config: 'DsxConfig', world: 'World')" in cause


def test_plugin_without_a_spec_is_refused() -> None:
    assert "no hook dsx_plugin()" in broken(types.ModuleType("fake_nameless"))


def test_wrapper_is_refused() -> None:
    module = plugin("wrapping")

    def around() -> Iterator[None]:
        yield

    module.dsx_claims = hookimpl(wrapper=True)(around)  # type: ignore[attr-defined]
    assert "cannot be wrapped" in broken(module)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "gave NoneType, wanted a PluginSpec"), (ValueError("seven"), "raised ValueError: seven")],
)
def test_bad_spec_is_refused(answer: Any, words: str) -> None:
    module = types.ModuleType("fake_bad")

    def dsx_plugin() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    module.dsx_plugin = hookimpl(dsx_plugin)  # type: ignore[attr-defined]
    assert words in broken(module)


def test_section_that_is_no_section_is_refused() -> None:
    assert "wanted a subclass of dsx.plugin.Section" in broken(plugin("odd", sections={"odd": dict}))  # type: ignore[dict-item]


@pytest.mark.parametrize("same", ["name", "section"])
def test_clash_names_both_providers(same: str) -> None:
    names = ("twin", "twin") if same == "name" else ("one", "two")
    modules = [plugin(name, sections={"shared": Settings} if same == "section" else {}) for name in names]
    items = [
        found(module, distribution=d, version=v) for module, d, v in zip(modules, ("alpha", "beta"), "12", strict=True)
    ]
    with pytest.raises(PluginError) as caught:
        PluginManager(items)
    assert "alpha 1" in str(caught.value)
    assert "beta 2" in str(caught.value)
    assert "DSX_PLUGINS_BLOCK" in str(caught.value)


def test_section_of_the_core_cannot_be_taken() -> None:
    with pytest.raises(PluginError, match=r"section 'fp16' is owned by the core itself and 'thief' \(acme-thief 1.0\)"):
        manager(plugin("thief", sections={"fp16": Settings}))


def test_generator_that_fails_late_is_named() -> None:
    def claims() -> Iterator[Claim]:
        yield sets("grad", "sharded", why="")
        raise KeyError("late")

    with pytest.raises(PluginError) as caught:
        manager(plugin("late", dsx_claims=claims)).claims(CONFIG, WORLD)
    assert "'late' (acme-late 1.0) failed in dsx_claims: KeyError: 'late'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_error_meant_for_the_user_passes_with_a_note() -> None:
    def claims() -> list[Claim]:
        raise PlanError("no")

    with pytest.raises(PlanError, match="no") as caught:
        manager(plugin("strict", dsx_claims=claims)).claims(CONFIG, WORLD)
    assert "dsx_claims of plugin 'strict' (acme-strict 1.0)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("answer", "words"), [([3], "found int 3, wanted Claim"), (3, "found int, wanted an iterable")]
)
def test_answer_of_the_wrong_type_is_named(answer: Any, words: str) -> None:
    with pytest.raises(PluginError) as caught:
        manager(plugin("wrong", dsx_claims=lambda: answer)).claims(CONFIG, WORLD)
    assert "'wrong' (acme-wrong 1.0)" in str(caught.value)
    assert words in str(caught.value)


def test_owner_alone_is_asked() -> None:
    class Loop:
        def __init__(self, *given: str) -> None:
            self.given = given

        train_batch = eval_batch = print

    plugins = manager(plugin("mine", dsx_make_loop=lambda plan, engine: Loop(plan, engine)), plugin("other"))
    assert plugins.call_owner("mine", "dsx_make_loop", plan="p", engine="e").given == ("p", "e")


@pytest.mark.parametrize("owner", ["idle", "absent"])
def test_owner_without_the_hook_is_an_error(owner: str) -> None:
    with pytest.raises(PluginError, match=f"'{owner}'.* has no hook dsx_make_loop"):
        manager(plugin("idle")).call_owner(owner, "dsx_make_loop", plan=None, engine=None)


def test_each_keeps_errors_and_stops_nobody() -> None:
    released: list[str] = []

    def failing(engine: Any) -> None:
        raise OSError("busy")

    plugins = manager(plugin("a", dsx_teardown=failing), plugin("b", dsx_teardown=lambda engine: released.append("b")))
    with pytest.warns(PluginWarning, match=r"(?s)'a' \(acme-a 1.0\) failed in dsx_teardown.*what to do:"):
        (error,) = plugins.teardown(None)  # type: ignore[arg-type]
    assert released == ["b"]
    assert error.plugin == "a"
    assert "busy" in str(error.value)


def test_report_shows_who_failed() -> None:
    plugins = manager(
        plugin("bad", dsx_report=lambda: 1 / 0), plugin("good", dsx_report=lambda: [ReportRow("t", "n", "v")])
    )
    rows = {item.plugin: item.value for item in plugins.report()}
    assert rows["good"].good
    assert not rows["bad"].good
    assert "division by zero" in rows["bad"].note


def test_info_says_what_each_provides() -> None:
    offer = plugin("rich", sections={"rich": Settings}, dsx_components=lambda: [Component(ANY, "x", load="a:b")])
    (info,) = manager(offer).info()
    assert (info.name, info.distribution, info.version, info.state) == ("rich", "acme-rich", "1.0", "active")
    assert info.provides == ("section rich", "thing x")


def test_offers_that_fail_stop_only_who_needs_them() -> None:
    asked: list[int] = []

    def good() -> Iterator[Component[Any]]:
        asked.append(1)
        yield Component(ANY, "x", load=lambda: 5)

    plugins = manager(plugin("bad", dsx_components=lambda: 1 / 0), plugin("good", dsx_components=good))
    with pytest.warns(PluginWarning, match=r"'bad' \(acme-bad 1.0\).*division by zero") as caught:
        infos = {info.name: info for info in plugins.info()}
    registry = Registry(plugins, kernels="")
    assert registry.get(ANY, "x") == 5
    assert (len(caught), asked) == (1, [1])
    assert "division by zero" in infos["bad"].cause
    assert [info.name for info in plugins.broken()] == ["bad"]
    with pytest.raises(PluginError, match="division by zero"):
        registry.get(ANY, "y")


def test_objects_and_modules_can_be_given_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        @hookimpl
        def dsx_plugin(self) -> Any:
            return plugin("local").dsx_plugin()  # type: ignore[attr-defined]

        @hookimpl
        def dsx_claims(self, config: DsxConfig) -> list[Claim]:
            return [sets("grad", "whole", why="bound method")]

    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "core, zero,native")
    plugins = plugin_manager(extra=[Local()])
    assert plugins.names == ("local",)
    assert plugins.claims(CONFIG, WORLD)[0].value.why == "bound method"
    with pytest.warns(PluginWarning, match="no_such_module"):
        assert plugin_manager(extra=["no_such_module"]).broken()[0].name == "no_such_module"


def test_every_hook_of_the_specification_has_a_typed_way_to_call_it() -> None:
    owners = {"dsx_make_driver", "dsx_make_loop"}
    methods = {f"dsx_{name}" for name in vars(PluginManager)}
    assert set(hook_names()) - owners - {"dsx_plugin"} <= methods


def test_a_config_error_names_the_section_of_a_plugin() -> None:
    from dsx.config.load import load_config

    with pytest.raises(ConfigError, match=r"rich\.zzz: unknown key"):
        load_config({"rich": {"zzz": 1}}, plugins=manager(plugin("rich", sections={"rich": Settings})))
