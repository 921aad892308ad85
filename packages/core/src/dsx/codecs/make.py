"""From the name of a codec to the object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsx.plugin.kinds import CODEC
from dsx.plugin.results import missing
from dsx.plugin.roles import Codec
from dsx.registry.building import building

if TYPE_CHECKING:
    from dsx.registry.registry import Registry


def make_codec(name: str, *, registry: Registry) -> Codec:
    """The codec of this name, made. Raises PluginError where nobody offers it, or it cannot be made or used."""
    with building(registry, CODEC, name):
        made: Codec = registry.get(CODEC, name)()
    lacking = missing(made, Codec)
    if lacking:
        who = registry.plugins.who(registry.component(CODEC, name).plugin)
        found = f"{type(made).__name__} without {', '.join(lacking)}"
        raise who.wrong(f"codec {name!r}", found=found, wanted="a Codec")
    return made
