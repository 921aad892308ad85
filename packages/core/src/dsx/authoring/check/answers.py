"""What hooks answer: right types, no errors, twice the same; and nothing that changes a training unasked."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import Any

from dsx.authoring.check.findings import Finding, judged, not_applicable
from dsx.authoring.check.setting import SITUATIONS, default_config, default_plan
from dsx.authoring.check.subject import Subject
from dsx.authoring.check.watch import Watch
from dsx.errors import DsxError
from dsx.plugin import RESOURCES, Claim, MeshAxis

AREA = "contract"
EARLY = (
    "dsx_plugin",
    "dsx_components",
    "dsx_commands",
    "dsx_report",
    "dsx_resolve",
    "dsx_mesh_axes",
    "dsx_claims",
    "dsx_passes",
    "dsx_check_plan",
    "dsx_construct",
)
"""Hooks that can be called without a model and an engine."""

ROLES = ("driver", "loop")
"""Resources whose owner does the training's work."""


def answers(subject: Subject) -> Iterator[Finding]:
    """Each early hook, called twice in each situation; one finding a hook."""
    for hook in EARLY:
        if hook in subject.hooks and not subject.journal.barred(hook):
            yield _answer(subject, hook)


def _answer(subject: Subject, hook: str) -> Finding:
    watch = Watch(subject.journal)
    function, count = subject.hooks[hook], 0
    for number, (world, facts) in enumerate(SITUATIONS):
        quiet = Watch(subject.journal)
        arguments: dict[str, Any] = {
            "config": default_config(subject, watch=quiet),
            "world": world,
            "facts": facts,
            "plan": default_plan(subject, watch=quiet, situation=number),
        }
        if "plan" in inspect.signature(function).parameters and isinstance(arguments["plan"], DsxError):
            return not_applicable(AREA, f"hook {hook}", "there is no plan with the default configuration")
        first, second = (watch.ask(hook, function, arguments) for _ in range(2))
        if not watch.troubles and portrait(first) != portrait(second):
            watch.note(hook, f"answered differently when asked again: first {portrait(first)}, then {portrait(second)}")
        if isinstance(first, AbstractContextManager):
            watch.call(hook, _entered, first)
        count = len(first) if isinstance(first, tuple) else int(first is not None)
    return judged(
        AREA,
        f"hook {hook}",
        [trouble.what for trouble in watch.take()],
        good="one value" if count == 1 else f"{count} values",
        remedy="with the default configuration a hook raises and prints nothing, answers with values of its declared "
        "type, and with the same each time",
    )


def _entered(context: AbstractContextManager[Any]) -> None:
    with context:
        pass


def portrait(value: Any) -> Any:
    """A value that can be compared with what another call gave; functions by name, objects by type."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {item.name: portrait(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): portrait(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portrait(item) for item in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return type(value).__name__ if " at 0x" in repr(value) else value


def idleness(subject: Subject) -> Iterator[Finding]:
    """Whether the plugin does nothing to a training whose configuration does not name it."""
    watch = Watch(subject.journal)
    world, facts = SITUATIONS[1]
    asked = {"config": default_config(subject, watch=watch), "world": world, "facts": facts}
    functions = subject.hooks
    claims, axes, resolved = (
        watch.ask(hook, functions[hook], asked) if hook in functions else ()
        for hook in ("dsx_claims", "dsx_mesh_axes", "dsx_resolve")
    )
    unasked = [f"it sets {said(claim)}" for claim in claims if claim.verb == "sets" and takes_over(claim)]
    unasked += [f"it makes a mesh axis {axis.name!r} of degree {axis.degree}" for axis in axes if divides(axis)]
    remedy = "claim, and make axes, only when the plugin's own section asks for it"
    plan = default_plan(subject, watch=watch)
    if isinstance(plan, DsxError):
        unasked.append(f"no plan can be made: {plan}")
    good = "; ".join(f"{claim.verb} {said(claim)}" for claim in claims) or "it claims nothing"
    yield judged(AREA, "idle by default", unasked, good=good, remedy=remedy)
    yield from _words(subject, claims, [item.key for item in resolved])


def _words(subject: Subject, claims: tuple[Claim, ...], keys: list[str]) -> Iterator[Finding]:
    """Whether what it says can be understood: known resources, own keys."""
    problems = [f"claims an unknown resource {claim.resource!r}" for claim in claims if claim.resource not in RESOURCES]
    own = tuple(f"{key}." for key in subject.spec.sections)
    problems += [f"resolves {key}, which is not in a section of its own" for key in keys if not key.startswith(own)]
    remedy = f"resources are {', '.join(RESOURCES)}; a plugin resolves keys of its own sections"
    yield judged(AREA, "claims and keys", problems, good="all are known", remedy=remedy)


def said(claim: Claim) -> str:
    """A claim in words."""
    return f"{claim.resource} {' or '.join(claim.states)} ({claim.why or 'it does not say why'})"


def takes_over(claim: Claim) -> bool:
    """Whether a claim changes what happens to a user who asked for nothing: any role, and what has no reason."""
    return claim.resource in ROLES or not claim.why.strip()


def divides(axis: MeshAxis) -> bool:
    """Whether an axis takes ranks away from data parallelism."""
    return axis.degree != 1 and axis.name != "data"
