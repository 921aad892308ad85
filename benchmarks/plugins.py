"""Plugins: what `dsx plugin check` catches, what idle ones cost, and how long a stranger's first one takes.

Idle plugins are measured against none in fresh processes in turn. Where the machine does other work too, processor
time decides instead of wall time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import stranger
from benchmarks.idle import COUNT, TOKENS, start, train, write_plugins
from benchmarks.processes import ROOT
from benchmarks.table import Row, at_most, spread
from dsx.authoring.project import install_project
from dsx.testing.ranks import run_ranks

SAMPLES = {
    "acme-metrics": ROOT / "tests" / "samples" / "acme-metrics",
    "acme-sparse-adam": ROOT / "examples" / "third_party_plugin",
}
"""The good ones."""
BROKEN = ROOT / "tests" / "samples" / "acme-broken"
FAULTS = {
    "a slow import": {("import cost", "seconds")},
    "an unknown hook": {("contract", "hook dsx_claim")},
    "an argument that the hook has not": {("contract", "hook dsx_passes")},
    "a name that is taken": {("contract", "optimizer adam")},
    "an exception in a hook": {("contract", "hook dsx_report")},
    "an answer of the wrong type": {("contract", "hook dsx_mesh_axes")},
    "wrong numbers": {("numerics", "kernel lion_step=hasty")},
    "a thread and a variable left behind": {("leaks", "threads"), ("leaks", "environment")},
}
"""The faults of the broken one, and where in the report each is seen: area and check."""
BUSY = 0.7
"""Load average at the start above which the machine counts as loaded."""
SPEED_KEPT, START_LIMIT, GREEN_LIMIT = 0.99, 0.050, 10.0
LEFT_OUT = ("build", "*.egg-info", "__pycache__")


# What idle plugins cost -------------------------------------------------------------------------------------------


def side_by_side(plugins: Path, *, blocks: int, steps: int, turn: int = 0) -> list[dict[str, Any]]:
    """What two fresh processes give that train in turn, block by block: without and with the idle plugins.

    They are forked off one that has imported torch, dsx and no plugin, so their memory lies alike; and what disturbs
    the machine for longer than a block disturbs both. With each turn the other process has the plugins, with every
    second one the other begins, and both move to another core.
    """
    cores = sorted(os.sched_getaffinity(0))
    folders = ["", str(plugins)] if turn % 2 == 0 else [str(plugins), ""]
    with tempfile.TemporaryDirectory() as folder:
        pipes = [str(Path(folder) / name) for name in ("first", "second")]
        for pipe in pipes:
            os.mkfifo(pipe)
        # Both stay open here: what is written into a pipe that nobody else has open yet would be lost.
        with open(pipes[0], "r+b", buffering=0) as first, open(pipes[1], "r+b", buffering=0) as second:
            (first, second)[turn // 2 % 2].write(b"x")
            core = cores[turn // 2 % len(cores)]
            found = run_ranks(train, folders, pipes, core, blocks, steps, deadline=600.0, init=False)
    without, with_plugins = found if turn % 2 == 0 else reversed(found)
    if (without["idle"], with_plugins["idle"]) != (0, COUNT):
        raise RuntimeError(f"found {without['idle']} and {with_plugins['idle']} idle plugins, wanted 0 and {COUNT}")
    return [without, with_plugins]


def step_rows(plugins: Path, *, short: bool, loaded: bool) -> list[Row]:
    """A step of a small GPT with idle plugins, beside none: functions called, and tokens over time."""
    pairs, blocks, steps = (2, 6, 3) if short else (12, 24, 5)
    found = [side_by_side(plugins, blocks=blocks, steps=steps, turn=turn) for turn in range(pairs)]
    without, with_plugins = ([pair[side]["calls"] for pair in found] for side in (0, 1))
    more = statistics.median(with_plugins) - statistics.median(without)
    note = f"{statistics.median(without):.0f} without any; functions of Python and C"
    table = [at_most(f"calls that {COUNT} idle plugins add to a step", more, 0, unit="calls", goal="none", note=note)]
    for measure, unit, decides in (("walls", "tokens/s", not loaded), ("processor", "tokens/CPU-s", loaded)):
        ratios = [
            statistics.median(none / idle for none, idle in zip(*(side[measure] for side in pair), strict=True))
            for pair in found
        ]
        none, idle = (
            statistics.median(steps * TOKENS / block for pair in found for block in pair[side][measure])
            for side in (0, 1)
        )
        ratio = statistics.median(ratios)
        goal = f"≥ {SPEED_KEPT} × none" if decides else ""
        holds = ratio >= SPEED_KEPT if goal else None
        note = f"medians of blocks, in {pairs} pairs of processes {spread(ratios)}; peer: no plugins"
        what = f"a step with {COUNT} idle plugins, {unit}"
        table.append(Row(what, idle, none, unit, ratio, SPEED_KEPT if goal else None, goal, holds, note))
    return table


def starts(what: str, plugins: Path, *, rounds: int) -> Iterator[list[dict[str, Any]]]:
    """Pairs of what a fresh process gives, without and with the idle plugins; each pair in the other order."""
    folders = [(0, ""), (COUNT, str(plugins))]
    for number in range(rounds):
        pair: list[dict[str, Any]] = [{}, {}]
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            count, folder = folders[side]
            (pair[side],) = run_ranks(start, folder, what, world=1, init=False)
            if pair[side]["idle"] != count:
                raise RuntimeError(f"found {pair[side]['idle']} idle plugins, wanted {count}")
        yield pair


def start_rows(plugins: Path, *, short: bool, loaded: bool) -> list[Row]:
    """What each idle plugin adds to finding all plugins, and to building an engine."""
    table = []
    for what, name in (("manager", "plugin_manager()"), ("initialize", "dsx.initialize()")):
        _, *pairs = starts(what, plugins, rounds=4 if short else 16)  # the first fills the file cache
        for measure, decides in (("wall", not loaded), ("processor", loaded)):
            added = [(with_plugins[measure] - without[measure]) / COUNT for without, with_plugins in pairs]
            base = statistics.median(without[measure] for without, _ in pairs)
            each = statistics.median(added)
            note = f"{spread(added)}; without any {base:.3f} s in all"
            title = f"{name}: each idle plugin adds, {measure}"
            limit, goal, holds = (START_LIMIT, "< 50 ms each", each < START_LIMIT) if decides else (None, "", None)
            table.append(Row(title, each, None, "s", None, limit, goal, holds, note))
    return table


# What the check catches -------------------------------------------------------------------------------------------


@contextmanager
def copied(project: Path) -> Iterator[Path]:
    """A copy of a project, because setuptools leaves a build/ beside the sources and packs what is still in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / project.name
        shutil.copytree(project, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        yield copy


def pip(python: Path | str, *arguments: str) -> None:
    """Run pip at the versions of constraints.txt."""
    stranger.run([str(python), "-m", "pip", *arguments, "-c", str(ROOT / "constraints.txt")], folder=ROOT)


def checked(project: Path, distribution: str, folder: Path) -> tuple[set[tuple[str, str]], float]:
    """What `dsx plugin check` reports of a project's plugin, as (area, check), and the seconds it takes."""
    site, found = folder / f"{distribution}-site", folder / f"{distribution}.json"
    site.mkdir(parents=True)
    install_project(project, into=site)
    command = [sys.executable, "-m", "dsx", "plugin", "check", distribution, "--json", str(found)]
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - started
    if not found.exists():
        raise RuntimeError(f"dsx plugin check {distribution} gave no findings:\n{done.stdout}{done.stderr}")
    findings = json.loads(found.read_text())["findings"]
    return {(each["area"], each["check"]) for each in findings if each["result"] in ("wrong", "slow")}, took


def check_rows(folder: Path) -> list[Row]:
    """Findings of the check on the good samples, and on the one that is broken in eight ways."""
    table = []
    for distribution, project in SAMPLES.items():
        reported, took = checked(project, distribution, folder)
        note = f"in {took:.1f} s" + (f": {sorted(reported)}" if reported else "")
        title = f"dsx plugin check {distribution}, good: reported"
        table.append(at_most(title, len(reported), 0, unit="findings", goal="none", note=note))
    reported, took = checked(BROKEN, BROKEN.name, folder)
    missed = [fault for fault, seen in FAULTS.items() if not reported & seen]
    beside = reported - {each for seen in FAULTS.values() for each in seen}
    note = (
        f"in {took:.1f} s"
        + (f"; missed: {missed}" if missed else "")
        + (f"; beside: {sorted(beside)}" if beside else "")
    )
    title, caught = f"dsx plugin check {BROKEN.name}, broken: caught", len(FAULTS) - len(missed)
    goal = f"{len(FAULTS)} of {len(FAULTS)}"
    return [*table, Row(title, caught, None, "faults", None, len(FAULTS), goal, not missed, note)]


# A stranger's first plugin ----------------------------------------------------------------------------------------


def stranger_rows(folder: Path) -> list[Row]:
    """Minutes from an empty folder to green tests, with the environment and without it."""
    python, place = folder / "environment" / "bin" / "python", folder / "empty"
    place.mkdir()
    with copied(ROOT / "packages" / "core") as project:
        pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(project))
    (wheel,) = folder.glob("dsx_core-*.whl")
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    pip(python, "install", "--quiet", f"{wheel}[testing]", "pytest-timeout")
    ready = time.perf_counter() - started
    took = stranger.walk(python, place, "acme-sparse-adam", only=stranger.GREEN)
    green = sum(took.values())
    note = "; ".join(f"{step} {seconds:.0f} s" for step, seconds in took.items())
    return [
        Row("dsx plugin new → tests green", green / 60, None, "min", None, None, "", None, note),
        at_most(
            "empty folder and wheels → tests green",
            (ready + green) / 60,
            GREEN_LIMIT,
            unit="min",
            goal="< 10 min",
            note=f"{ready:.0f} s of it for the environment with torch",
        ),
    ]


def rows(*, short: bool) -> list[Row]:
    """The check, then what idle plugins cost, then the stranger's way, which is left out when short."""
    loaded = os.getloadavg()[0] > BUSY
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plugins = folder / "idle"
        plugins.mkdir()
        write_plugins(plugins)
        table = check_rows(folder / "checked")
        table += step_rows(plugins, short=short, loaded=loaded)
        table += start_rows(plugins, short=short, loaded=loaded)
        return table if short else [*table, *stranger_rows(folder)]
