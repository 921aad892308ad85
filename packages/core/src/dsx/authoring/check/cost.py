"""What it costs that a plugin is installed: seconds added to every start, and the modules that take them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsx.authoring.check.findings import Finding, Verdict, not_applicable, ok, wrong
from dsx.authoring.check.journal import events
from dsx.authoring.check.process import (
    BEGIN,
    LOADING,
    START,
    Job,
    Outcome,
    ended,
    ending,
    environment,
    lingering,
    run_child,
)

AREA = "import cost"
LIMIT = 0.05
"""Seconds that loading an entry point may add to a start."""

RUNS, MOST_RUNS = 3, 6
"""Fresh processes, of which the fastest counts; up to the second number while it is not within the limit."""

SHOWN = 4


@dataclass(slots=True)
class Loads:
    """Several loads of one plugin, each in a fresh process."""

    findings: list[Finding] = field(default_factory=list)
    """Of the first: what it raised or left behind."""
    answers: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Whether the plugin could be imported."""
        return bool(self.answers) and not any(answer.get("broken") for answer in self.answers)

    def least(self, what: str) -> float:
        """The fewest seconds, by the clock ``wall`` or ``processor``."""
        return min(float(answer[what]) for answer in self.answers)


def loads(job: Job) -> Loads:
    """Import the plugin a few times; once where that fails."""
    found = Loads()
    for number in range(MOST_RUNS):
        if number >= RUNS and found.least("wall") <= LIMIT:
            break
        job.say(f"import, {number + 1}")
        first = _load(job, look=number == 0)
        found.findings += first.findings if number == 0 or first.ending else []
        found.answers += first.answers
        if first.ending or not found.works:
            break
    return found


def _load(job: Job, *, look: bool) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="dsx-check-") as scratch:
        folder = Path(scratch)
        code, outcome = _start(job, folder, look=look)
        for event in events(folder / "journal"):
            if "finding" in event:
                outcome.findings.append(Finding.read(event["finding"]))
            if "answer" in event:
                outcome.answers.append(event["answer"])
        if {"done": LOADING} in events(folder / "journal"):
            outcome.findings += [lingering(code)] if code != 0 else []
        else:
            outcome.ending = ending(code, job.deadline)
            outcome.findings.append(ended("contract", "import", outcome))
    return outcome


def _start(job: Job, folder: Path, *, look: bool, flags: Sequence[str] = ()) -> tuple[int | None, Outcome]:
    request = {"target": job.target.plain(), "journal": str(folder / "journal"), "look": look}
    (folder / "request").write_text(json.dumps(request), encoding="utf-8")
    code, output = run_child(
        ["dsx.authoring.check.loading", str(folder / "request")],
        folder=folder,
        end=LOADING,
        deadline=job.deadline,
        say=lambda text: None,
        flags=flags,
    )
    return code, Outcome(output=output)


def cost(job: Job, found: Loads) -> Iterator[Finding]:
    """Seconds, the heaviest modules where there are too many, and whether ``import dsx`` alone stays without it."""
    if not found.works:
        yield not_applicable(AREA, "seconds", "it cannot be imported")
    else:
        wall, processor = found.least("wall"), found.least("processor")
        said = f"{1000 * wall:.1f} ms ({1000 * processor:.1f} ms of the processor), the least of {len(found.answers)}"
        if wall <= LIMIT:
            yield ok(AREA, "seconds", f"{said}; {_foreign(job, found)}")
        else:
            heavy = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in heaviest(job)[:SHOWN])
            yield Finding(
                AREA,
                "seconds",
                Verdict.SLOW,
                f"{said}, wanted at most {1000 * LIMIT:.0f} ms; the most in {heavy}",
                "import what is heavy inside the function or component that uses it: it is paid by every start",
            )
    yield untouched(job)


def _foreign(job: Job, found: Loads) -> str:
    known = {"dsx", job.target.top, *sys.stdlib_module_names}
    tops = sorted({name.partition(".")[0] for name in found.answers[0]["modules"]} - known)
    return f"imports {', '.join(tops)} with it" if tops else "imports no other package"


def heaviest(job: Job) -> list[tuple[str, float]]:
    """(module, its own seconds) of what the import brings in, the heaviest first."""
    with tempfile.TemporaryDirectory(prefix="dsx-check-") as scratch:
        _start(job, Path(scratch), look=False, flags=("-X", "importtime"))
        text = (Path(scratch) / "output").read_text(encoding="utf-8", errors="replace")
    _, _, after = text.partition(BEGIN)
    rows = [line.removeprefix("import time:").split("|") for line in after.splitlines() if "|" in line]
    found = [(row[2].strip(), int(row[0]) / 1e6) for row in rows if len(row) == 3 and row[0].strip().isdigit()]
    return sorted(found, key=lambda pair: -pair[1])


def untouched(job: Job) -> Finding:
    """Whether ``import dsx`` leaves the plugin alone."""
    check, top = "import dsx alone", job.target.top
    probe = f"import dsx, sys; print([m for m in sys.modules if m == {top!r} or m.startswith({top + '.'!r})])"
    command = [sys.executable, "-P", "-c", probe]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=job.deadline + START, check=False
        )
    except subprocess.TimeoutExpired:
        return wrong(AREA, check, "it does not end", "find what starts by itself: a .pth file, a sitecustomize")
    if done.stdout.strip() == "[]" or top == "dsx":
        return ok(AREA, check, "imports nothing of the plugin")
    said = done.stdout.strip() or done.stderr.strip()[-200:]
    remedy = "let nothing but the entry point load it: no .pth file, no sitecustomize"
    return wrong(AREA, check, f"brings {said}, wanted nothing of {top}", remedy)
