"""Child processes in which a plugin may hang, exit or crash: each ending is a finding, and the check goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from dsx.authoring.check.findings import Finding, wrong
from dsx.authoring.check.journal import events
from dsx.authoring.check.target import Target

AGAIN = 20
"""How often one group of steps is begun again after a plugin has ended its process."""

OWN_VARIABLES = ("DSX_PLUGINS", "DSX_PLUGINS_BLOCK", "DSX_KERNELS", "DSX_ACCELERATOR")
"""Variables that would change what is checked; a child does not see those of its parent."""

LINGER = 5.0
"""Seconds in which a child whose work is done must end."""

LOADING = "loading"
"""The work of a child that only imports the plugin."""

START = 60.0
"""Seconds that a child is given at least to import torch and dsx, however short its deadline is."""

BEGIN = "dsx: the plugin is imported from here on"
"""Written to stderr before an import that is measured, for who reads ``-X importtime`` there."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What children are told, and how long they may stay silent."""

    target: Target
    others: Sequence[Target] = ()
    config: Mapping[str, Any] | None = None
    """A further configuration to live through, beside the defaults."""
    deadline: float = 60.0
    """Seconds without a sign of progress."""
    say: Say = lambda text: None


@dataclass(slots=True)
class Outcome:
    """What one child, or several that continued each other, have found."""

    findings: list[Finding] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    ending: str = ""
    """How the last child ended before its work was done; empty where it was done."""
    output: str = ""
    area: str = "contract"
    """Of the step that ran last."""


def run_group(group: str, job: Job, *, skip: set[str] | None = None) -> Outcome:
    """Every finding of a group of steps. A step in which the process ends is a finding; the others are still done."""
    outcome = Outcome()
    skip = set() if skip is None else skip
    done: list[str] = []
    for _ in range(AGAIN):
        attempt, finished, mark = _attempt(group, job, skip=skip, done=done)
        outcome.findings += [finding for finding in attempt.findings if finding not in outcome.findings]
        outcome.answers += attempt.answers
        outcome.ending, outcome.output = attempt.ending, attempt.output
        done += finished
        if not attempt.ending:
            break
        outcome.findings.append(ended(attempt.area, mark, attempt))
        if mark in skip or mark in ("start", "import"):
            break
        skip.add(mark)
    return outcome


def ended(area: str, mark: str, attempt: Outcome) -> Finding:
    """The finding that a plugin has ended its process."""
    said = f"; it wrote: {attempt.output}" if attempt.output else ""
    return wrong(
        area,
        mark,
        f"the process {attempt.ending} during {mark}{said}",
        "raise an error instead: a plugin may not end, kill or block the program that it is part of",
    )


def lingering(code: int | None) -> Finding:
    """The finding that a process, whose work was done, did not end, or ended badly."""
    told = f"it still ran {LINGER:g} s later" if code is None else f"it {ending(code, 0)}"
    return wrong(
        "leaks",
        "end of the process",
        f"when all was done, {told}, wanted an end with status 0",
        "end threads, or make them daemons; let functions given to atexit neither wait nor fail",
    )


def _attempt(group: str, job: Job, *, skip: set[str], done: list[str]) -> tuple[Outcome, list[str], str]:
    """One child: what it found, the steps it completed, and where it stood last."""
    with tempfile.TemporaryDirectory(prefix="dsx-check-") as scratch:
        folder = Path(scratch)
        request = {
            "group": group,
            "target": job.target.plain(),
            "others": [other.plain() for other in job.others],
            "config": job.config,
            "skip": sorted(skip),
            "done": done,
            "journal": str(folder / "journal"),
        }
        (folder / "request").write_text(json.dumps(request), encoding="utf-8")
        code, output = run_child(
            ["dsx.authoring.check.child", str(folder / "request")],
            folder=folder,
            end=group,
            deadline=job.deadline,
            say=lambda text: job.say(f"{group}: {text}"),
        )
        outcome, finished, mark = Outcome(), [], "start"
        complete = False
        for event in events(folder / "journal"):
            mark = event.get("now", mark)
            outcome.area = event.get("area", outcome.area)
            if "finding" in event:
                outcome.findings.append(Finding.read(event["finding"]))
            if "answer" in event:
                outcome.answers.append(event["answer"])
            if "done" in event:
                complete = event["done"] == group
                finished += [] if complete else [event["done"]]
    outcome.output = output
    outcome.ending = "" if complete else ending(code, job.deadline)
    if complete and code != 0:
        outcome.findings.append(lingering(code))
    return outcome, finished, mark


def run_child(
    arguments: Sequence[str], *, folder: Path, end: str, deadline: float, say: Say, flags: Sequence[str] = ()
) -> tuple[int | None, str]:
    """Run a module as a program: (exit status, None past the deadline; the end of what it wrote).

    It runs in an empty folder, sees the modules that this process sees, and leaves no process behind. Its deadline
    begins anew with every line of its journal; once ``end`` is done there, it must end.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    command = [sys.executable, *flags, "-P", "-X", "faulthandler", "-m", *arguments]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=work,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = _wait(process, folder / "journal", end=end, deadline=deadline, say=say)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, _last_words((folder / "output").read_text(encoding="utf-8", errors="replace"))


def environment() -> dict[str, str]:
    """This process's environment, with its search path for modules, and without what would change the check."""
    usual = set(sysconfig.get_paths().values())  # the interpreter puts these on the path by itself
    paths = [os.path.abspath(path) for path in sys.path if path not in usual]
    kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    # One thread and the host: the numbers are then the same on every machine.
    fixed = {"OMP_NUM_THREADS": "1", "DSX_ACCELERATOR": "cpu"}
    return {**kept, **fixed, "PYTHONPATH": os.pathsep.join(paths)}


def _wait(process: subprocess.Popen[bytes], journal: Path, *, end: str, deadline: float, say: Say) -> int | None:
    """The exit status; None where it stayed silent for too long, after its stack has been written."""
    heard, until = 0, monotonic() + max(deadline, START)
    while process.poll() is None:
        size = journal.stat().st_size if journal.exists() else 0
        if size != heard:
            told = events(journal)
            heard, until = size, monotonic() + (LINGER if {"done": end} in told else deadline)
            say(next((event["now"] for event in reversed(told) if "now" in event), ""))
        if monotonic() > until:
            process.send_signal(signal.SIGABRT)  # faulthandler writes where it stands
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            return None
        sleep(0.02)
    return process.returncode


def ending(code: int | None, deadline: float) -> str:
    """How a process ended, in words that follow "the process"."""
    if code is None:
        return f"was still silent after {deadline:g} s"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def _last_words(text: str) -> str:
    """What tells most: the innermost frame of a fault handler's stack, else the last line that was written."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith(("Current thread", "Thread")) and "most recent call first" in line:
            return next((line for line in lines[number + 1 :] if line.startswith("File ")), lines[-1])
    return lines[-1] if lines else ""
