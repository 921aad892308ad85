"""Hooks and components that raise or answer wrongly: one message that names plugin, distribution, version, remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from fake_plugins import manager, plugin
from plugin_messages import complete

from dsx.config.root import DsxConfig
from dsx.errors import DsxError, PluginError
from dsx.plugin import (
    AUTO,
    MONITOR,
    OPTIMIZER,
    Auto,
    CheckpointPart,
    Claim,
    Component,
    Facts,
    Kernel,
    Kind,
    MeshAxis,
    Resolved,
    Score,
    Section,
    World,
    sets,
)
from dsx.plugin.inspection import hook_names
from dsx.plugin.manager import PluginManager, PluginWarning
from dsx.registry.registry import Registry

CONFIG, WORLD = DsxConfig(), World()


def loads(value: Any) -> Callable[[], Any]:
    return lambda: value


# What fails when it is asked ------------------------------------------------------------------------------------------

ASK: dict[str, Callable[[PluginManager], Any]] = {
    "dsx_resolve": lambda plugins: plugins.resolve(CONFIG, WORLD, Facts()),
    "dsx_mesh_axes": lambda plugins: plugins.mesh_axes(CONFIG, WORLD),
    "dsx_claims": lambda plugins: plugins.claims(CONFIG, WORLD),
    "dsx_passes": lambda plugins: plugins.passes(CONFIG),
    "dsx_check_plan": lambda plugins: plugins.check_plan(None),  # type: ignore[arg-type]
    "dsx_construct": lambda plugins: plugins.construct(None),  # type: ignore[arg-type]
    "dsx_param_families": lambda plugins: plugins.param_families(None, None),  # type: ignore[arg-type]
    "dsx_make_driver": lambda plugins: plugins.call_owner(
        "bad", "dsx_make_driver", plan=None, model=None, families=[], make_inner=None, mesh=None
    ),
    "dsx_make_loop": lambda plugins: plugins.call_owner("bad", "dsx_make_loop", plan=None, engine=None),
    "dsx_observers": lambda plugins: plugins.observers(None, None),  # type: ignore[arg-type]
    "dsx_checkpoint_parts": lambda plugins: plugins.checkpoint_parts(None),  # type: ignore[arg-type]
}
TOLD = {
    "dsx_components": lambda plugins: plugins.components(),
    "dsx_commands": lambda plugins: plugins.commands(),
    "dsx_teardown": lambda plugins: plugins.teardown(None),
}


def test_every_hook_is_in_these_tables() -> None:
    assert {*ASK, *TOLD, "dsx_plugin", "dsx_report"} == set(hook_names())


def failing() -> Any:
    raise KeyError("lost")


@pytest.mark.parametrize("hook", ASK)
def test_exception_in_a_hook_is_one_error(hook: str) -> None:
    with pytest.raises(PluginError) as caught:
        ASK[hook](manager(plugin("bad", **{hook: failing})))
    assert f"failed in {hook}: KeyError: 'lost'" in str(caught.value)
    assert complete(str(caught.value), name="bad")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("hook", TOLD)
def test_exception_in_what_stops_nobody_is_one_warning(hook: str) -> None:
    plugins = manager(plugin("bad", **{hook: failing}), plugin("good"))
    with pytest.warns(PluginWarning) as caught:
        TOLD[hook](plugins)
    (message,) = (str(item.message) for item in caught)
    assert f"failed in {hook}: KeyError: 'lost'" in message
    assert complete(message, name="bad")


def test_exception_in_a_report_is_one_row() -> None:
    (row,) = (item.value for item in manager(plugin("bad", dsx_report=failing)).report())
    assert not row.good
    assert row.note.startswith("failed in dsx_report: KeyError: 'lost'; what to do: report it")


WRONG: dict[str, Any] = {
    "dsx_resolve": [7],
    "dsx_mesh_axes": [MeshAxis("pipe", "four")],  # type: ignore[arg-type]
    "dsx_claims": [Claim("grad", "whole", "sets", "a text is no tuple")],  # type: ignore[arg-type]
    "dsx_passes": "abc",
    "dsx_check_plan": {"a": 1},
    "dsx_construct": "no context",
    "dsx_param_families": [None],
    "dsx_make_driver": None,
    "dsx_make_loop": object(),
    "dsx_observers": [object()],
    "dsx_checkpoint_parts": [CheckpointPart("x", "1", dict, dict)],  # type: ignore[arg-type]
}


@pytest.mark.parametrize("hook", WRONG)
def test_answer_of_the_wrong_type_is_one_error(hook: str) -> None:
    with pytest.raises(PluginError) as caught:
        ASK[hook](manager(plugin("bad", **{hook: lambda: WRONG[hook]})))
    message = str(caught.value)
    assert "found" in message
    assert "wanted" in message
    assert hook in message
    assert complete(message, name="bad")


@pytest.mark.parametrize(
    "offer",
    [
        Component("optimizer", "x", load="a:b"),  # type: ignore[arg-type]
        Component(OPTIMIZER, "x", load="a:b", aliases="y"),  # type: ignore[arg-type]
        Component(OPTIMIZER, "x", load=3),  # type: ignore[arg-type]
        Kernel("adam_step", None, load="a:b", score=lambda: Score(1, "")),  # type: ignore[arg-type]
    ],
)
def test_offer_with_a_field_of_the_wrong_type_is_one_warning(offer: Any) -> None:
    with pytest.warns(PluginWarning) as caught:
        assert manager(plugin("bad", dsx_components=lambda: [offer])).components() == ()
    (message,) = (str(item.message) for item in caught)
    assert complete(message, name="bad")


def test_role_that_lacks_methods_names_them() -> None:
    half = type("Half", (), {"train_batch": print})
    with pytest.raises(PluginError, match="found Half without eval_batch, wanted a Loop"):
        ASK["dsx_make_loop"](manager(plugin("bad", dsx_make_loop=lambda: half())))
    with pytest.raises(PluginError, match=r"without .*after_step.*derive from dsx.engine.observers.Observer"):
        ASK["dsx_observers"](manager(plugin("bad", dsx_observers=lambda: [half()])))


class Keys(Section):
    """Keys of a plugin."""

    depth: Auto[int] = AUTO
    """A number."""


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"dsx_resolve": lambda: [Resolved("seed", 3, "")]}, "no key of a plugin: wanted keys of its own sections"),
        ({"dsx_resolve": lambda: [Resolved("own.depth", "much", "")]}, "own.depth: found 'much'"),
        ({"dsx_claims": lambda: [sets("grads", "whole", why="")]}, "unknown resource 'grads' (did you mean 'grad'?)"),
        ({"dsx_mesh_axes": lambda: [MeshAxis("expert", 1, inside="dat")]}, "inside 'dat', which is not an axis"),
        ({"dsx_mesh_axes": lambda: [MeshAxis("pipe", 0)]}, "degree 0, wanted at least 1"),
    ],
)
def test_answer_about_what_is_not_its_own_is_one_error(hooks: dict[str, Any], words: str) -> None:
    from dsx.planning.make import make_plan

    ready = {"dsx_resolve": lambda: [Resolved("own.depth", 3, "")], **hooks}
    plugins = manager(plugin("bad", sections={"own": Keys}, **ready))
    with pytest.raises(DsxError) as caught:
        make_plan({"train_micro_batch_size_per_gpu": 1}, world=WORLD, plugins=plugins)
    assert words in str(caught.value)
    assert complete(str(caught.value), name="bad")


# Components -----------------------------------------------------------------------------------------------------------

ANY: Kind[Any] = Kind("thing", "anything")


@pytest.mark.parametrize(
    ("kind", "load", "words"),
    [
        (ANY, failing, "cannot be loaded: KeyError: 'lost'"),
        (ANY, lambda: sys.exit(4), "cannot be loaded: SystemExit: 4"),
        (ANY, "nowhere_at_all:x", "cannot be loaded: ModuleNotFoundError"),
        (MONITOR, lambda: 3, "found int 3, wanted a class or function"),
    ],
)
def test_component_that_cannot_be_had_is_one_error(kind: Kind[Any], load: Any, words: str) -> None:
    registry = Registry(manager(plugin("bad", dsx_components=lambda: [Component(kind, "x", load)])), kernels="")
    with pytest.raises(PluginError) as caught:
        registry.get(kind, "x")
    assert words in str(caught.value)
    assert complete(str(caught.value), name="bad")


def choice(bad: Kernel) -> Registry:
    good = Kernel("adam_step", "good", load=loads(print), score=lambda: Score(1, "always"))
    offer = plugin("bad", dsx_components=lambda: [bad])
    return Registry(manager(offer, plugin("good", dsx_components=lambda: [good])), kernels="")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Kernel("adam_step", "bad", loads(print), score=failing), "its score raised KeyError: 'lost'"),
        (Kernel("adam_step", "bad", loads(print), score=lambda: 9), "its score gave int"),  # type: ignore[arg-type,return-value]
        (
            Kernel("adam_step", "bad", loads(print), score=lambda: Score(9, ""), supports=lambda like: failing()),
            "its supports raised KeyError: 'lost'",
        ),
    ],
)
def test_kernel_that_cannot_judge_itself_is_one_warning_and_not_used(bad: Kernel, words: str) -> None:
    import torch

    registry = choice(bad)
    with pytest.warns(PluginWarning) as caught:
        assert registry.kernel("adam_step", like=torch.zeros(1)) is print
    assert registry.kernel("adam_step", like=torch.zeros(1)) is print
    (message,) = (str(item.message) for item in caught)
    assert words in message
    assert complete(message, name="bad")


@pytest.mark.parametrize(
    ("load", "words"), [(failing, "cannot be loaded: KeyError"), (loads(5), "found int 5, wanted a function")]
)
def test_kernel_that_cannot_be_had_is_one_error(load: Any, words: str) -> None:
    registry = choice(Kernel("adam_step", "bad", load, score=lambda: Score(9, "")))
    with pytest.raises(PluginError) as caught:
        registry.kernel("adam_step")
    assert words in str(caught.value)
    assert complete(str(caught.value), name="bad")
