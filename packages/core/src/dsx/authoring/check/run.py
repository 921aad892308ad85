"""The whole check of one plugin, area by area, each in processes of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dsx.authoring.check.cost import AREA as COST
from dsx.authoring.check.cost import cost, loads
from dsx.authoring.check.findings import Finding, Report, Verdict, not_applicable, ok
from dsx.authoring.check.journal import events
from dsx.authoring.check.packaging import packaging
from dsx.authoring.check.process import Job, Say, run_child, run_group
from dsx.authoring.check.target import Target, installed, named, unknown
from dsx.errors import PluginError

AREAS = ("contract", "numerics", "failures", COST, "leaks")
"""In the order in which they are reported."""

NAMES = "names"
"""The work of a child that asks plugins for their names."""

GROUPS = ("contract", "training")
"""The groups of steps that `dsx.authoring.check.child` knows, each run in one process."""


def check_plugin(
    name: str,
    *,
    modules: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    exempt: Sequence[str] = (),
    deadline: float = 60.0,
    say: Say = lambda text: None,
) -> Report:
    """Check a plugin: contract, numerics, failures, import cost, leaks. Nothing of it is imported in this process.

    name: a distribution, an entry point of the group ``dsx``, a plugin's own name, or a module. modules: plugins that
    are no entry points, among which its own name is looked for. config: a configuration in which the plugin is used,
    lived through beside the defaults. exempt: patterns of checks that it fails on purpose, such as ``driver *`` for one
    that is not to train as plain PyTorch does. deadline: seconds of silence after which a process of it is ended, and
    that is a finding. say: told what is being done. Raises PluginError for a name that nothing bears.
    """
    known = installed()
    extra = tuple(Target(module, module) for module in modules if not any(module == each.module for each in known))
    targets = find(name, (*known, *extra), deadline=deadline)
    findings: list[Finding] = []
    for target in targets:
        others = tuple(other for other in (*known, *extra) if other != target)
        job = Job(target, others=others, config=config, deadline=deadline, say=say)
        found = list(check_target(job))
        found = [excused(finding, exempt) for finding in found]
        if len(targets) > 1:
            found = [replace(finding, check=f"{target.name}: {finding.check}") for finding in found]
        findings += found
    first = targets[0]
    title = first.name if len(targets) == 1 else name
    return Report(title, first.distribution, first.version, tuple(in_order(findings)))


def excused(finding: Finding, exempt: Sequence[str]) -> Finding:
    """The finding, not applicable where its check is exempt."""
    if finding.bad and any(fnmatchcase(finding.check, pattern) for pattern in exempt):
        return not_applicable(finding.area, finding.check, f"exempt; {finding.found}")
    return finding


def find(name: str, known: tuple[Target, ...], *, deadline: float = 60.0) -> tuple[Target, ...]:
    """The plugins of this name. Their own names are asked for, in another process, only where nothing else fits."""
    targets = named(name, known)
    if any(target.top == "dsx" for target in targets):
        raise PluginError(
            f"{name!r} is the core's own plugin, with which others are checked; wanted another plugin\n"
            f"    what to do: run the tests of dsx-core"
        )
    if targets:
        return targets
    own = own_names(known, deadline=deadline)
    if name not in own:
        raise unknown(name, known, own)
    return (own[name],)


def own_names(known: tuple[Target, ...], *, deadline: float) -> dict[str, Target]:
    """What each plugin calls itself; one that cannot be asked is left out."""
    with tempfile.TemporaryDirectory(prefix="dsx-check-") as scratch:
        folder = Path(scratch)
        request = {"targets": [target.plain() for target in known], "journal": str(folder / "journal")}
        (folder / "request").write_text(json.dumps(request), encoding="utf-8")
        run_child(
            ["dsx.authoring.check.names", str(folder / "request")],
            folder=folder,
            end=NAMES,
            deadline=deadline,
            say=lambda text: None,
        )
        answers = [event["answer"] for event in events(folder / "journal") if "answer" in event]
    return {answer["name"]: Target.read(answer["target"]) for answer in answers}


def check_target(job: Job) -> Iterator[Finding]:
    """Every finding of one plugin."""
    yield from packaging(job.target, job.others)
    found = loads(job)
    yield from found.findings
    yield from cost(job, found)
    if not found.works:
        yield from (not_applicable(area, area, "it cannot be imported") for area in ("numerics", "failures"))
        return
    yield ok("contract", "import", f"{job.target.load} can be imported")
    skip: set[str] = set()
    for group in GROUPS:
        yield from run_group(group, job, skip=skip).findings


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """By area; what is said twice of the same thing, once; well only where nothing is ill of it."""
    bad = {(finding.check, finding.found) for finding in findings if finding.bad}
    ill = {(finding.area, finding.check) for finding in findings if finding.bad}
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda each: AREAS.index(each.area)):
        key = (finding.check, finding.found)
        if finding.bad and key not in bad:
            continue
        bad.discard(key)
        if finding.verdict is Verdict.OK and (finding.area, finding.check) in ill:
            continue
        kept.append(finding)
    return kept
