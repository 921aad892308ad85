"""Components: by kind and name in any case, imported when asked for, clashes and unknown names answered with help."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from fake_plugins import manager, plugin

from dsx.errors import PluginError
from dsx.plugin import OPTIMIZER, Component, Kind
from dsx.plugin.discovery import Found
from dsx.plugin.manager import PluginManager, PluginWarning
from dsx.registry.registry import Registry

THING: Kind[Any] = Kind("thing", "anything")


def registry(*components: Component[Any]) -> Registry:
    return Registry(manager(plugin("shop", dsx_components=lambda: components)), kernels="")


def test_found_by_name_or_alias_in_any_case() -> None:
    known = registry(Component(THING, "Ordered", load="collections:OrderedDict", aliases=("od",)))
    for name in ("Ordered", "ordered", "OD"):
        assert known.get(THING, name) is OrderedDict
        assert known.has(THING, name)
    assert known.names(THING) == ("Ordered",)
    assert not known.has(OPTIMIZER, "Ordered")


def test_loaded_once_and_only_when_asked_for() -> None:
    made: list[int] = []
    known = registry(Component(THING, "x", load=lambda: made.append(1) or object()))
    assert known.component(THING, "x").plugin == "shop"
    assert made == []
    assert known.get(THING, "x") is known.get(THING, "X")
    assert made == [1]


def test_one_name_in_two_kinds_is_no_clash() -> None:
    other: Kind[Any] = Kind("other", "another")
    known = registry(Component(THING, "x", load=lambda: 1), Component(other, "x", load=lambda: 2))
    assert (known.get(THING, "x"), known.get(other, "x")) == (1, 2)


@pytest.mark.parametrize(
    "second", [Component(THING, "ADAM", load="b:b"), Component(THING, "y", load="b:b", aliases=("adam",))]
)
def test_clash_names_each_provider(second: Component[Any]) -> None:
    first = Component(THING, "adam", load="a:a")
    plugins = manager(plugin("one", dsx_components=lambda: [first]), plugin("two", dsx_components=lambda: [second]))
    with pytest.raises(
        PluginError, match=r"thing 'adam' is offered by 'one' \(acme-one 1.0\) and 'two' \(acme-two 1.0\)"
    ):
        Registry(plugins, kernels="")


def test_unknown_name_lists_known_and_nearest() -> None:
    known = registry(Component(OPTIMIZER, "Adam", load="a:a"), Component(OPTIMIZER, "SGD", load="a:a"))
    with pytest.raises(PluginError) as caught:
        known.get(OPTIMIZER, "Adm")
    assert "unknown optimizer 'Adm' (did you mean 'adam'?): wanted one of Adam, SGD" in str(caught.value)


def test_unknown_name_that_a_distribution_would_bring() -> None:
    with pytest.raises(PluginError, match="needs dsx-compression: pip install dsx-compression"):
        registry().get(OPTIMIZER, "OneBitAdam")


def test_unknown_name_beside_a_broken_plugin_tells_its_cause() -> None:
    with pytest.warns(PluginWarning):
        plugins = PluginManager([Found("acme", "acme-dsx", "2", state="broken", cause="no sophia here")])
    with pytest.raises(PluginError, match="acme-dsx 2.*no sophia here"):
        Registry(plugins, kernels="").get(OPTIMIZER, "sophia")


@pytest.mark.parametrize("load", ["no_such_module:x", "collections:NoSuchThing", "collections", ":x", lambda: 1 / 0])
def test_component_that_cannot_be_loaded_names_its_plugin(load: Any) -> None:
    with pytest.raises(PluginError, match=r"thing 'x' of plugin 'shop' \(acme-shop 1.0\) cannot be loaded"):
        registry(Component(THING, "x", load=load)).get(THING, "x")
