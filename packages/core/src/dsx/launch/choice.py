"""What the launcher asks the registry: how many devices there are, and how machines are reached."""

from __future__ import annotations

from dsx.accelerator.base import choose
from dsx.errors import LaunchError, did_you_mean
from dsx.plugin.kinds import RUNNER
from dsx.plugin.manager import plugin_manager
from dsx.plugin.roles import Runner
from dsx.plugin.types import Score
from dsx.registry.building import building, probed
from dsx.registry.registry import Registry


def default_nproc() -> int:
    """A rank for each device of this machine."""
    return choose(registry=Registry(plugin_manager())).device_count()


def choose_runner(name: str | None = None) -> Runner:
    """The runner of this name, else the best that is available. Raises LaunchError with the reasons where none is."""
    registry = Registry(plugin_manager())
    known = registry.names(RUNNER)
    if name is not None and name not in known:
        raise LaunchError(f"unknown runner {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    asked = known if name is None else (name,)
    scores = {each: _score(registry, each) for each in asked}
    best = max(scores, key=lambda each: (scores[each].value, each))
    if scores[best].value == 0:
        reasons = "; ".join(f"{each}: {score.why}" for each, score in scores.items())
        raise LaunchError(f"no way to reach the other machines: {reasons}")
    return _made(registry, best)


def _score(registry: Registry, name: str) -> Score:
    return probed(registry, RUNNER, name, lambda: _made(registry, name).available())


def _made(registry: Registry, name: str) -> Runner:
    with building(registry, RUNNER, name):
        return registry.get(RUNNER, name)()
