"""The core's own plugin: every module of its folder is heard, and every component can be loaded."""

from __future__ import annotations

import pkgutil

import pytest

from dsx import builtin
from dsx.builtin.plugin import ROOMS
from dsx.errors import PluginError
from dsx.plugin.kinds import KINDS
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(plugin_manager(block=["zero", "native"]), kernels="")


def test_every_room_of_the_folder_is_heard() -> None:
    folder = {found.name for found in pkgutil.iter_modules(builtin.__path__)} - {"plugin"}
    assert {room.__name__.rpartition(".")[2] for room in ROOMS} == folder


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_component_loads(kind: object, registry: Registry) -> None:
    names = registry.names(kind)  # type: ignore[arg-type]
    assert names
    for name in names:
        try:
            assert callable(registry.get(kind, name))  # type: ignore[arg-type]
        except PluginError as error:
            pytest.fail(f"{name}: {error}")


def test_every_operation_has_a_torch_reference_of_score_1(registry: Registry) -> None:
    assert registry.kernels.operations
    for operation in registry.kernels.operations:
        scores = {variant: score.value for variant, score in registry.scores(operation)}
        assert scores["torch"] == 1, operation
        assert callable(registry.kernel(operation))
