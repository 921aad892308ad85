"""A family of parameters and a mesh axis: some parameters are shared within an island of ranks, not by all.

Turned on by ``"islands": {"count": 2, "names": ["*.adapter.*"]}``: each half of the ranks trains adapters of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pydantic import Field

from dsx.plugin import Family, MeshAxis, PluginSpec, Section, hookimpl

if TYPE_CHECKING:
    from torch import nn

    from dsx.config.root import DsxConfig
    from dsx.planning.plan import Plan


class IslandSection(Section):
    """``islands``: groups of ranks, each with its own copy of some parameters."""

    count: int = Field(default=1, ge=1)
    """How many islands the data-parallel ranks are divided into."""
    names: tuple[str, ...] = ()
    """Parameters of which each island has its own, with wildcards."""


SPEC = PluginSpec(name="example-family", api=1, summary="islands of ranks", sections={"islands": IslandSection})


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_mesh_axes(config: DsxConfig) -> Iterator[MeshAxis]:
    """Two axes that divide ``data``: along the first ranks are of different islands, along the second of one."""
    section = config.section(IslandSection)
    if section.count > 1:
        why = f"islands.count={section.count}"
        yield MeshAxis("island", section.count, inside="data", why=why)
        yield MeshAxis("island_data", None, inside="data", why=why)


@hookimpl
def dsx_param_families(plan: Plan) -> Iterator[Family]:
    """Gradients of an island's own parameters are summed over the ranks of that island alone."""
    section = plan.config.section(IslandSection)

    def own(name: str, param: nn.Parameter) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in section.names)

    if section.count > 1:
        within = ("island_data",)
        yield Family("island", own, split_over=("island",), reduce_over=within, shard_over=within)
