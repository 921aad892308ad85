"""Around a component's own code: what it raises names the plugin that offers it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dsx.errors import DsxError
from dsx.plugin.discovery import PluginWarning
from dsx.plugin.kinds import PARTITIONER
from dsx.plugin.naming import REMEDY, Named, Who, naming
from dsx.plugin.types import Kind, Score
from dsx.warned import warn_outside

CORRECT = "correct the configuration where the message speaks of it, else report it to the plugin's authors"


def owner(registry: Any, kind: Kind[Any], name: str) -> Who | None:
    """The plugin that offers a component; ``None`` for a stand-in of a registry, as tests have, which knows none."""
    return registry.plugins.who(registry.component(kind, name).plugin) if hasattr(registry, "plugins") else None


def building(registry: Any, kind: Kind[Any], name: str) -> AbstractContextManager[None]:
    """A context for making one component."""
    who = owner(registry, kind, name)
    return nullcontext() if who is None else naming(who, f"making {kind.name} {name!r}", remedy=CORRECT)


def used(registry: Any, kind: Kind[Any], name: str) -> Any:
    """A component as a model pass is given it. A partitioner, which is asked while building only, keeps its name."""
    found, who = registry.get(kind, name), owner(registry, kind, name)
    return found if who is None or kind is not PARTITIONER else Named(found, who, f"{kind.name} {name!r}")


def probed(registry: Any, kind: Kind[Any], name: str, probe: Callable[[], Any]) -> Score:
    """What a component says of this machine. One that fails to say is told of in a warning, and counts as not here."""
    try:
        said = probe()
        problem = "" if isinstance(said, Score) else f"its score is a {type(said).__name__}, wanted a Score"
    except DsxError as error:  # names the plugin already, as one that cannot be loaded
        said, problem = None, str(error).partition(REMEDY)[0]
    except Exception as error:  # noqa: BLE001  (told, and the others are asked)
        said, problem = None, f"its score raised {type(error).__name__}: {error}"
    if isinstance(said, Score):
        return said
    who = owner(registry, kind, name) or Who("of a test")
    text = f"{kind.name} {name!r} of plugin {who.provider} is not used: {problem}"
    warn_outside(f"{text}{REMEDY}{who.remedy}", PluginWarning)
    return Score(0, f"{problem}, by plugin {who.provider}")
