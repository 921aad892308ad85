"""Broken in eight ways at once. Each is a mistake that plugin authors make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from acme_broken import tables  # noqa: F401  1: a slow import, paid by every start of every program that uses dsx
from acme_broken.kernels import score
from dsx.plugin import OPTIMIZER, Component, Kernel, MeshAxis, ModelPass, Observer, PluginSpec, hookimpl

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.engine.engine import Engine
    from dsx.mesh.mesh import Mesh

SPEC = PluginSpec(name="acme-broken", api=1, summary="broken in eight ways")


@hookimpl
def dsx_plugin() -> PluginSpec:
    return SPEC


@hookimpl
def dsx_claim(config: DsxConfig) -> list[Any]:  # 2: no such hook; dsx_claims is meant
    return []


@hookimpl
def dsx_passes(config: DsxConfig, mesh: Mesh) -> list[ModelPass]:  # 3: this hook is not given a mesh
    return []


@hookimpl
def dsx_components() -> Iterator[Component[Any] | Kernel]:
    yield Component(OPTIMIZER, "Adam", load="torch.optim:Adam")  # 4: the core has this name
    # 7: wrong numbers, and an element is written that is not its own
    yield Kernel("lion_step", "hasty", load="acme_broken.kernels:hasty_lion_step", score=score)


@hookimpl
def dsx_report() -> list[Any]:
    raise RuntimeError("the clock has stopped")  # 5: an exception


@hookimpl
def dsx_mesh_axes() -> list[MeshAxis]:
    return [("acme", 1)]  # type: ignore[list-item]  # 6: not a MeshAxis


@hookimpl
def dsx_observers(engine: Engine) -> Iterator[Observer]:
    from acme_broken.clock import Clock

    yield Clock()  # 8: a thread and an environment variable stay behind
