"""What a plugin's objects raise while an engine is built, trains, saves and closes names the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from fake_plugins import manager, plugin
from plugin_messages import complete
from torch import nn

import dsx
from dsx.builtin import plugin as builtin
from dsx.cli.lazy import add_command
from dsx.cli.main import build_app
from dsx.engine.observers import Observer
from dsx.errors import CheckpointError, PluginError
from dsx.plugin import (
    ACCELERATOR,
    MONITOR,
    OPTIMIZER,
    PARTITIONER,
    RUNNER,
    SCHEDULE,
    STORE,
    CheckpointPart,
    Command,
    Component,
    Family,
    Kind,
    ModelPass,
    Phase,
    sets,
)
from dsx.plugin.discovery import Found
from dsx.plugin.manager import PluginManager, PluginWarning
from dsx.registry.registry import Registry

CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}


def failing(*given: Any, **named: Any) -> Any:
    raise KeyError("lost")


def beside_the_core(**hooks: Callable[..., Any]) -> PluginManager:
    return PluginManager([Found("core", "dsx-core", "0", builtin), *_found(plugin("bad", **hooks))])


def _found(*modules: Any) -> Iterator[Found]:
    for module in modules:
        yield Found("bad", "acme-bad", "1.0", module)


def begun(plugins: PluginManager, **config: Any) -> dsx.Engine:
    return dsx.initialize(model=nn.Linear(2, 1), config=CONFIG | config, plugins=plugins)[0]


def trained(engine: dsx.Engine) -> None:
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()


def lived(engine: dsx.Engine, folder: Path) -> None:
    trained(engine)
    engine.save_checkpoint(folder)
    engine.close()


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"dsx_passes": lambda: [ModelPass("p", Phase.REWRITE, failing)]}, "failed in model pass 'p': KeyError"),
        (
            {"dsx_passes": lambda: [ModelPass("p", Phase.REWRITE, lambda model, plan: None)]},  # type: ignore[arg-type,return-value]
            "model pass 'p': found NoneType, wanted a Module",
        ),
        ({"dsx_param_families": lambda: [Family("f", failing)]}, "failed in members of family 'f': KeyError"),
        (
            {"dsx_claims": lambda: [sets("driver", "mine", why="")], "dsx_make_driver": failing},
            "failed in dsx_make_driver: KeyError",
        ),
        (
            {"dsx_claims": lambda: [sets("loop", "mine", why="")], "dsx_make_loop": lambda: print},
            "found builtin_function_or_method without train_batch, eval_batch, wanted a Loop",
        ),
        ({"dsx_claims": lambda: [sets("loop", "mine", why="")]}, "owns a role but has no hook dsx_make_loop"),
    ],
)
def test_an_engine_that_cannot_be_built(hooks: dict[str, Any], words: str) -> None:
    if "dsx_make_driver" in hooks:
        hooks["dsx_make_driver"] = lambda plan: failing()
    with pytest.raises(PluginError) as caught:
        begun(beside_the_core(**hooks))
    assert words in str(caught.value)
    assert complete(str(caught.value), name="bad")


@pytest.mark.parametrize("method", [name for name in vars(Observer) if not name.startswith("_")])
def test_an_observer_keeps_its_error_and_is_named(method: str, tmp_path: Path) -> None:
    observer = type("Watcher", (Observer,), {method: failing})
    engine = begun(beside_the_core(dsx_observers=lambda: [observer()]))
    with pytest.raises(KeyError, match="lost") as caught:
        lived(engine, tmp_path)
    (note,) = caught.value.__notes__
    assert note.startswith("raised in observer Watcher of plugin")
    assert complete(note, name="bad")
    engine.observers = ()
    engine.close()


@pytest.mark.parametrize("broken", ["state", "load", "check", "type"])
def test_a_checkpoint_part_is_named(broken: str, tmp_path: Path) -> None:
    state = {"state": failing, "type": lambda: 3}.get(broken, lambda: {"a": 1})
    load = failing if broken == "load" else lambda state: None
    part = CheckpointPart("p", 1, state, load, check=failing if broken == "check" else None)
    with begun(beside_the_core(dsx_checkpoint_parts=lambda: [part])) as engine:
        if broken in ("load", "check"):
            engine.save_checkpoint(tmp_path)
        act = engine.load_checkpoint if broken in ("load", "check") else engine.save_checkpoint
        with pytest.raises((PluginError, CheckpointError)) as caught:
            act(tmp_path)
    said = f"{caught.value} {' '.join(getattr(caught.value, '__notes__', ()))}"
    assert "checkpoint part 'p'" in said
    assert complete(said, name="bad")


def test_a_teardown_is_one_warning_and_the_engine_closes() -> None:
    engine = begun(beside_the_core(dsx_teardown=lambda: failing()))
    with pytest.warns(PluginWarning) as caught:
        engine.close()
    assert complete(str(caught[0].message), name="bad")
    assert len(caught) == 1


@pytest.mark.parametrize("when", ["entering", "leaving"])
def test_a_context_around_construction_is_named(when: str) -> None:
    @contextmanager
    def around() -> Iterator[None]:
        if when == "entering":
            failing()
        yield
        failing()

    (tagged,) = manager(plugin("bad", dsx_construct=around)).construct(None)  # type: ignore[arg-type]
    with pytest.raises(PluginError) as caught, tagged.value:
        assert when == "leaving"
    assert f"failed in dsx_construct, {when}: KeyError" in str(caught.value)
    assert complete(str(caught.value), name="bad")


def test_what_the_users_constructor_raises_is_the_users() -> None:
    @contextmanager
    def around() -> Iterator[None]:
        yield

    (tagged,) = manager(plugin("good", dsx_construct=around)).construct(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mine") as caught, tagged.value:
        raise ValueError("mine")
    assert not hasattr(caught.value, "__notes__")


CHOSEN: list[tuple[Kind[Any], dict[str, Any]]] = [
    (OPTIMIZER, {"optimizer": {"type": "x"}}),
    (SCHEDULE, {"scheduler": {"type": "x"}}),
    (MONITOR, {"monitors": [{"type": "x"}]}),
    (STORE, {"checkpoint": {"store": "x"}}),
]


@pytest.mark.parametrize(("kind", "config"), CHOSEN, ids=lambda value: getattr(value, "name", ""))
def test_a_constructor_is_named(kind: Kind[Any], config: dict[str, Any], tmp_path: Path) -> None:
    plugins = beside_the_core(dsx_components=lambda: [Component(kind, "x", load=lambda: failing)])
    with pytest.raises(PluginError) as caught, begun(plugins, **config) as engine:
        engine.save_checkpoint(tmp_path)
    assert f"failed in making {kind.name} 'x': KeyError" in str(caught.value)
    assert complete(str(caught.value), name="bad")


def test_a_monitor_that_fails_is_switched_off_and_named() -> None:
    monitor = type("Meter", (), {"write": failing, "close": lambda self: None})
    plugins = beside_the_core(dsx_components=lambda: [Component(MONITOR, "x", load=lambda: monitor)])
    with begun(plugins, monitors=[{"type": "x"}]) as engine:
        with pytest.warns(RuntimeWarning) as caught:
            trained(engine)
        trained(engine)
    (message,) = (str(item.message) for item in caught)
    assert "failed to write and is switched off: KeyError" in message
    assert complete(message, name="bad")


@pytest.mark.parametrize(
    ("partitioner", "words"),
    [
        (failing, "failed in partitioner 'x': KeyError"),
        (lambda layers, parts: [1], "partitioner 'x' of plugin 'bad' (acme-bad 1.0) gave no way to cut"),
    ],
)
def test_a_partitioner_that_fails_is_named_and_not_the_core(partitioner: Any, words: str) -> None:
    plugins = beside_the_core(dsx_components=lambda: [Component(PARTITIONER, "x", load=lambda: partitioner)])
    recompute = {"modules": ["Linear"], "partitioner": "x", "number_checkpoints": 1}
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(PluginError) as caught:
        dsx.initialize(model=model, config={**CONFIG, "activation_checkpointing": recompute}, plugins=plugins)
    assert words in str(caught.value)
    assert complete(str(caught.value), name="bad")
    assert not hasattr(caught.value, "__notes__")


class Probing:
    """An accelerator or runner that cannot say whether it fits."""

    @staticmethod
    def score() -> Any:
        return failing()

    available = score


def test_a_probe_that_fails_leaves_the_choice_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsx.accelerator.base import choose
    from dsx.launch.choice import choose_runner

    offers = [Component(kind, "x", load=lambda: Probing) for kind in (ACCELERATOR, RUNNER)]
    plugins = beside_the_core(dsx_components=lambda: offers)
    with pytest.warns(PluginWarning, match=r"(?s)accelerator 'x' of plugin 'bad' \(acme-bad 1.0\).*what to do"):
        assert choose(registry=Registry(plugins)).name != "x"
    monkeypatch.setattr("dsx.launch.choice.plugin_manager", lambda: plugins)
    monkeypatch.setattr("dsx.launch.runners.shutil.which", lambda program: f"/bin/{program}")
    with pytest.warns(PluginWarning, match=r"(?s)runner 'x' of plugin 'bad' \(acme-bad 1.0\).*what to do"):
        assert type(choose_runner()) is not Probing


def tells_off() -> None:
    """A command that fails."""
    failing()


EMPTY = typer.Typer()
"""An application without a command."""


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("CONFIG", "found dict, wanted a Typer application or a function"),
        ("nowhere", "cannot be loaded: AttributeError"),
        ("EMPTY", "failed in making command 'talk' of it"),
    ],
)
def test_a_command_that_cannot_be_made_is_one_error(attribute: str, words: str) -> None:
    app = build_app(manager())
    add_command(app, Command("talk", f"{__name__}:{attribute}", ""), provider="'bad' (acme-bad 1.0)", block="bad")
    with pytest.raises(PluginError) as caught:
        app(args=["talk"])
    assert words in str(caught.value)
    assert complete(str(caught.value), name="bad")


def test_a_command_that_fails_keeps_its_error_and_is_named() -> None:
    app = build_app(manager())
    add_command(app, Command("talk", f"{__name__}:tells_off", ""), provider="'bad' (acme-bad 1.0)", block="bad")
    with pytest.raises(KeyError) as caught:
        app(args=["talk"])
    assert complete(caught.value.__notes__[0], name="bad")
