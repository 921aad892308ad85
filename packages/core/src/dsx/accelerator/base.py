"""The choice of the device."""

from __future__ import annotations

import os
from typing import Protocol

from dsx.errors import ConfigError, DsxError, PluginError, did_you_mean
from dsx.plugin.kinds import ACCELERATOR
from dsx.plugin.roles import Accelerator
from dsx.plugin.types import Kind, Score
from dsx.registry.building import building, probed

VARIABLE = "DSX_ACCELERATOR"
"""The environment variable that forces an accelerator by name."""


class Components(Protocol):
    """The part of the registry that the choice needs."""

    def get(self, kind: Kind[type[Accelerator]], name: str) -> type[Accelerator]: ...
    def names(self, kind: Kind[type[Accelerator]]) -> tuple[str, ...]: ...


def choose(name: str | None = None, *, registry: Components) -> Accelerator:
    """The accelerator of this name (or of ``DSX_ACCELERATOR``), else the one with the best score.

    Raises ConfigError for an unknown name, DsxError where the named one cannot run here, each with the reason.
    """
    wanted = name or os.environ.get(VARIABLE) or None
    known = registry.names(ACCELERATOR)
    if not known:
        raise PluginError("no plugin offers an accelerator\n    what to do: take 'core' out of DSX_PLUGINS_BLOCK")
    if wanted is None:
        scored = scores(registry)
        best = max(known, key=lambda each: (scored[each].value, each))
        return _made(best, registry)
    if wanted not in known:
        raise ConfigError(
            f"unknown accelerator {wanted!r}{did_you_mean(wanted, known)}; this installation has {', '.join(known)}"
        )
    score = _score(wanted, registry)
    if score.value == 0:
        raise DsxError(
            f"accelerator {wanted!r} cannot run here: {score.why}; choose another with {VARIABLE}, or none to let dsx "
            "choose"
        )
    return _made(wanted, registry)


def scores(registry: Components) -> dict[str, Score]:
    """Every accelerator's score on this machine, by name, for reports."""
    return {name: _score(name, registry) for name in registry.names(ACCELERATOR)}


def _made(name: str, registry: Components) -> Accelerator:
    with building(registry, ACCELERATOR, name):
        return registry.get(ACCELERATOR, name)()


def _score(name: str, registry: Components) -> Score:
    return probed(registry, ACCELERATOR, name, lambda: registry.get(ACCELERATOR, name).score())
