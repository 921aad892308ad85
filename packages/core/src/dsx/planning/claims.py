"""Settles what plugins say of resources: each is set by at most one, and every need holds of the final state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsx.errors import did_you_mean
from dsx.planning.plan import Claimed
from dsx.plugin.types import RESOURCES


@dataclass(frozen=True, slots=True)
class Settlement:
    """The final state of each resource, who set it, and every reason why it cannot stand."""

    states: dict[str, str]
    owners: dict[str, str]
    problems: tuple[str, ...]


def settle(claims: Sequence[Claimed], *, provider: Callable[[str], str] = repr) -> Settlement:
    """The final states. Order does not matter: what nobody sets is as in RESOURCES, and needs are judged last.

    provider: how a plugin is named in full where it is its own mistake.
    """
    setters: dict[str, list[Claimed]] = {}
    problems: list[str] = []
    for item in sorted(claims, key=lambda item: (item.claim.resource, item.plugin, item.claim.states, item.claim.why)):
        if item.claim.resource not in RESOURCES:
            meant = did_you_mean(item.claim.resource, RESOURCES)
            problems.append(
                f"{provider(item.plugin)} speaks of an unknown resource {item.claim.resource!r}{meant}, "
                f"wanted one of {', '.join(RESOURCES)}\n    what to do: report it to the plugin's authors"
            )
        elif item.claim.verb == "sets":
            setters.setdefault(item.claim.resource, []).append(item)
    states, owners = dict(RESOURCES), {}
    for resource, found in setters.items():
        if len({item.plugin for item in found}) > 1 or len({item.claim.states for item in found}) > 1:
            problems.append(_clash(resource, found))
        states[resource], owners[resource] = found[0].claim.states[0], found[0].plugin
    for item in claims:
        claim = item.claim
        if claim.verb == "needs" and claim.resource in states and states[claim.resource] not in claim.states:
            problems.append(_unmet(item, states[claim.resource], setters.get(claim.resource, [])))
    return Settlement(states, owners, tuple(problems))


def _clash(resource: str, found: Sequence[Claimed]) -> str:
    said = " and ".join(f"{item.plugin!r} sets it {item.claim.states[0]} ({item.claim.why})" for item in found)
    return f"{resource} can be set by one plugin only: {said}\n    nearest legal: turn one of them off"


def _unmet(item: Claimed, state: str, setters: Sequence[Claimed]) -> str:
    wanted = " or ".join(item.claim.states)
    by = f", set by {setters[0].plugin!r} ({setters[0].claim.why})" if setters else ", as nothing sets it"
    text = f"{item.plugin!r} needs {item.claim.resource} {wanted} ({item.claim.why}), but it is {state}{by}"
    return f"{text}\n    nearest legal: {item.claim.nearest}" if item.claim.nearest else text
