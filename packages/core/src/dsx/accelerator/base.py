"""The choice of the device."""

from __future__ import annotations

import os
from typing import Protocol

from dsx.errors import ConfigError, DsxError, did_you_mean
from dsx.plugin.kinds import ACCELERATOR
from dsx.plugin.roles import Accelerator
from dsx.plugin.types import Kind, Score

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
    if wanted is None:
        scored = scores(registry)
        best = max(known, key=lambda each: (scored[each].value, each))
        return registry.get(ACCELERATOR, best)()
    if wanted not in known:
        raise ConfigError(
            f"unknown accelerator {wanted!r}{did_you_mean(wanted, known)}; this installation has {', '.join(known)}"
        )
    kind = registry.get(ACCELERATOR, wanted)
    score = kind.score()
    if score.value == 0:
        raise DsxError(
            f"accelerator {wanted!r} cannot run here: {score.why}; choose another with {VARIABLE}, or none to let dsx "
            "choose"
        )
    return kind()


def scores(registry: Components) -> dict[str, Score]:
    """Every accelerator's score on this machine, by name, for reports."""
    return {name: registry.get(ACCELERATOR, name).score() for name in registry.names(ACCELERATOR)}
