"""Keys of section checkpoint: refused or honoured, never ignored in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from observe_helpers import engine_of, train

from dsx.checkpoint.stores import DirectoryStore
from dsx.config.explain import explain
from dsx.config.root import DsxConfig
from dsx.errors import PlanError, PluginError
from dsx.planning.make import make_plan
from dsx.plugin import API_VERSION, STORE, Component, PluginSpec, hookimpl
from dsx.plugin.manager import plugin_manager
from dsx.plugin.types import World

NODE_LOCAL = {"train_micro_batch_size_per_gpu": 1, "checkpoint": {"use_node_local_storage": True}}


@pytest.mark.parametrize("world", [World(), World(size=4, local_size=4)])
def test_node_local_storage_on_one_node(world: World) -> None:
    assert make_plan(NODE_LOCAL, world=world).config.checkpoint.use_node_local_storage


@pytest.mark.parametrize("world", [World(size=4, local_size=2), World(rank=3, size=4, local_rank=0, local_size=1)])
def test_node_local_storage_on_several_nodes_is_refused_while_planning(world: World) -> None:
    with pytest.raises(PlanError, match="(?s)use_node_local_storage.*4 ranks.*nearest legal: .*=false"):
        make_plan(NODE_LOCAL, world=world)


class Elsewhere(DirectoryStore):
    """Keeps its files below another root."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "elsewhere")


class StorePlugin:
    """Offers a store."""

    @hookimpl
    def dsx_plugin(self) -> PluginSpec:
        return PluginSpec(name="elsewhere", api=API_VERSION, summary="a store")

    @hookimpl
    def dsx_components(self) -> list[Component[Any]]:
        return [Component(STORE, "elsewhere", load=lambda: Elsewhere)]


def test_the_store_that_is_named_keeps_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = plugin_manager(extra=[StorePlugin()], block=["zero", "native"])
    monkeypatch.setattr("observe_helpers.plugin_manager", lambda **_: plugins)
    with engine_of(checkpoint={"store": "elsewhere"}) as engine:
        train(engine)
        saved = engine.full_state_dict()
        engine.save_checkpoint(tmp_path, tag="one")
        train(engine)
        assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
        engine.load_checkpoint(tmp_path)
        assert engine.full_state_dict()["0.weight"].equal(saved["0.weight"])


def test_an_unknown_store_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(PluginError, match="directoy.*directory"):
        engine_of(checkpoint={"store": "directoy"}).__enter__()


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("checkpoint.tag_validation", "always fail"),
        ("checkpoint.use_node_local_storage", "Only on one node"),
        ("torch_autocast.lower_precision_safe_modules", "Accepted without effect"),
        ("activation_checkpointing.partition_activations", "No effect without tensor parallelism"),
    ],
)
def test_explain_says_what_becomes_of_a_key(key: str, word: str) -> None:
    (row,) = [row for row in explain(DsxConfig()) if row.key == key]
    assert word in row.why
