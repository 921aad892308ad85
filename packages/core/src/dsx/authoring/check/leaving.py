"""What an engine with the plugin leaves behind: the process is compared before and after, twice."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dsx.authoring.check.findings import Finding, judged, not_applicable, wrong
from dsx.authoring.check.living import Left, live, reference_kernels
from dsx.authoring.check.setting import BASE, default_plan, switched_on
from dsx.authoring.check.state import REMEDIES, State
from dsx.authoring.check.subject import Subject, bare
from dsx.authoring.check.watch import Watch
from dsx.errors import DsxError

AREA = "leaks"
USED = ("files", "random numbers")
"""What a plugin that is used may well change: it writes where it was told to, and draws."""


def leaks(subject: Subject) -> Iterator[Finding]:
    """One finding for each subject of comparison, over two lives at the defaults and one of each used setting.

    Before them, what the plugin did when it was asked who it is, what it offers and what it plans.
    """
    plan = default_plan(subject, watch=Watch(subject.journal))
    found: dict[str, list[str]] = {name: [] for name in (*REMEDIES, *OWN)}
    asked = subject.before.changes() if subject.before is not None else {}
    for name, changes in asked.items():
        found[name] += [f"when asked for its offers and plans: {change}" for change in changes]
    if isinstance(plan, DsxError):
        yield not_applicable(AREA, "engine life", "with the default configuration there is no plan")
        yield from (wrong(AREA, name, "; ".join(told), REMEDIES[name]) for name, told in found.items() if told)
        return
    with reference_kernels(subject):
        first = live(BASE, bare())  # torch and dsx bring in what they bring in once
        usual = first.hooks
        del first
    runs = [("", BASE), ("again, ", BASE), *((f"with {title}, ", config) for title, config in switched_on(subject))]
    for prefix, config in runs:
        for name, changes in _lived(subject, config, usual).items():
            found[name] += [f"{prefix}{change}" for change in changes]
    remedies = {**REMEDIES, **OWN}
    for name, changes in found.items():
        yield judged(AREA, name, changes, good="as before", remedy=remedies[name])


OWN: Mapping[str, str] = {
    "hooks on the model": "remove in close() or dsx_teardown what was put on the model",
    "freed engine": "keep engine and model in engine.stash, or in an observer; not in a module or a cache",
}
"""Subjects beside those of the process, with what to do."""


def _lived(subject: Subject, config: Mapping[str, Any], usual: tuple[str, ...]) -> dict[str, list[str]]:
    """What one more life has changed."""
    if not subject.journal.may("engine life, for leaks"):
        return {}
    watch = Watch(subject.journal, strict=config is BASE)
    before = State.now()
    with reference_kernels(subject):
        try:
            left = live(config, subject.manager(watch))
        except (Exception, SystemExit):  # noqa: BLE001  (it has been told of; what is left is compared all the same)
            left = Left((), ())
    gc.collect()
    changes = before.changes()
    changes["hooks on the model"] = [hook for hook in left.hooks if hook not in usual]
    changes["freed engine"] = list(_alive(left))
    return {name: told for name, told in changes.items() if config is BASE or name not in USED}


def _alive(left: Left) -> Iterator[str]:
    for reference in left.references:
        thing = reference()
        if thing is not None:
            frames = (sys._getframe(), sys._getframe(1))
            holders = [_described(holder) for holder in gc.get_referrers(thing) if holder not in frames]
            yield f"{type(thing).__name__} is still alive, held by {', '.join(holders[:3]) or 'native code'}"
        del thing


def _described(holder: Any) -> str:
    if isinstance(holder, dict) and "__name__" in holder and "__spec__" in holder:
        return f"module {holder['__name__']}"
    return type(holder).__name__
