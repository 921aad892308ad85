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
    codes = ["import torch", "import torch, dsx"]
    peer = importlib.util.find_spec("deepspeed") is not None
    if peer:
        codes.append("import torch, deepspeed")
    alone, *others = alternate(codes, rounds=rounds)
    table = []
    # A loaded machine stretches wall time and not processor time, so the goal is held against the latter.
    for index, measure, held in ((0, "wall", False), (1, "processor", True)):
        base = [times[index] for times in alone]
        added = [[times[index] - low for times, low in zip(other, base, strict=True)] for other in others]
        adds, *peer_adds = (statistics.median(values) for values in added)
        theirs = peer_adds[0] if peer_adds else None
        ratio = theirs / adds if theirs is not None and adds > 0 else None
        goal, holds = ("ours ≤ 0.3 s", adds <= IMPORT_LIMIT) if held else ("", None)
        note = (
            f"{'peer: deepspeed; ' if peer else ''}torch itself {cell(statistics.median(base))} s; {spread(added[0])}"
        )
        what = f"import dsx over import torch, {measure}"
        table.append(Row(what, adds, theirs, "s", ratio, IMPORT_LIMIT, goal, holds, note))
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
