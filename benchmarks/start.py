"""How fast dsx starts: what `import dsx` adds to `import torch`, and the first step where there is no compiler."""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.table import Row, cell, spread

FIRST_STEP = """
import torch, dsx
model = torch.nn.Linear(64, 64)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2},
}
engine, *_ = dsx.initialize(model=model, config=config)
loss = engine(torch.ones(2, 64)).square().mean()
engine.backward(loss)
engine.step()
engine.close()
"""
IMPORT_LIMIT = 0.3


def timed(code: str, *, path: str | None = None) -> tuple[float, float]:
    """Wall and processor seconds of a fresh Python that runs this code; with ``path``, it finds programs only there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({} if path is None else {"PATH": path})}
    before, started = children_seconds(), time.perf_counter()
    finished = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - started
    if finished.returncode:
        raise RuntimeError(f"{code!r} failed:\n{finished.stderr[-3000:]}")
    return wall, children_seconds() - before


def children_seconds() -> float:
    """Processor time of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def alternate(codes: Sequence[str], *, rounds: int) -> list[list[tuple[float, float]]]:
    """Time each code in turn, so many rounds; what disturbs the machine disturbs all of them."""
    for code in codes:
        timed(code)  # fills the file cache
    return [list(times) for times in zip(*([timed(code) for code in codes] for _ in range(rounds)), strict=True)]


def import_rows(*, rounds: int) -> list[Row]:
    """What the imports add to `import torch`, in wall seconds and in processor seconds."""
    codes = {
        "": "import torch",
        "import dsx": "import torch, dsx",
        "dsx.initialize": "import torch, dsx; dsx.initialize",
    }
    if importlib.util.find_spec("deepspeed") is not None:
        codes["deepspeed"] = "import torch, deepspeed"
    times = dict(zip(codes, alternate(list(codes.values()), rounds=rounds), strict=True))
    table = []
    for index, measure in enumerate(("wall", "processor")):
        base = [both[index] for both in times[""]]
        added = {
            name: [both[index] - low for both, low in zip(found, base, strict=True)]
            for name, found in times.items()
            if name
        }
        theirs = statistics.median(added["deepspeed"]) if "deepspeed" in added else None
        for name in ("import dsx", "dsx.initialize"):
            adds = statistics.median(added[name])
            # A loaded machine stretches wall time and not processor time, so the goal is held against the latter.
            held = (name, measure) == ("import dsx", "processor")
            goal, limit, holds = ("ours ≤ 0.3 s", IMPORT_LIMIT, adds <= IMPORT_LIMIT) if held else ("", None, None)
            ratio = theirs / adds if theirs is not None and adds > 0 else None
            note = f"torch itself {cell(statistics.median(base))} s; {spread(added[name])}; peer: import deepspeed"
            what = f"{name} over import torch, {measure}"
            table.append(Row(what, adds, theirs, "s", ratio, limit, goal, holds, note))
    return table


def first_step_row(*, rounds: int) -> Row:
    """From a fresh process to a finished first step, with no program at all on PATH."""
    with tempfile.TemporaryDirectory() as nothing:
        found = [timed(FIRST_STEP, path=nothing) for _ in range(rounds)]
    walls = [wall for wall, _ in found]
    note = f"from process start; spread {spread(walls)}"
    goal = "runs without a compiler"
    return Row("first step, PATH empty", statistics.median(walls), None, "s", None, None, goal, True, note)


def rows(*, short: bool) -> list[Row]:
    """Imports, then the first step."""
    rounds = 5 if short else 11
    return [*import_rows(rounds=rounds), first_step_row(rounds=3)]
