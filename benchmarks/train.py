"""Training speed and memory of the quickstart model on two ranks, beside DeepSpeed, FSDP2 and DDP.

Every contestant runs in fresh processes, one thread a rank, in turn, for several rounds. Where the machine does other
work too, tokens per processor second decide instead of tokens per second.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import ROOT, run_ranks
from benchmarks.table import Row, at_most, spread

RANKS = 2
MODEL = ROOT / "examples" / "quickstart"
EXTENSIONS = ROOT / ".nox" / "torch_extensions"
BUSY = 0.7
"""Load average at the start above which the machine counts as loaded."""
LEAD = {1: ("deepspeed", 1.15), 2: ("deepspeed", 1.15), 3: ("fsdp2", 1.2)}
"""By stage: a peer, and how far ahead of it we mean to be."""
LOSS_APART = {"fp32": 1e-3, "bf16": 5e-2}


@dataclass(frozen=True)
class Entry:
    """One contestant: an engine at a stage in a precision."""

    engine: str
    stage: int
    dtype: str


@dataclass
class Score:
    """What the rounds of one contestant gave."""

    per_second: list[float]
    per_processor_second: list[float]
    rss: list[float]
    loss: float


def entries(dtypes: Iterable[str]) -> list[Entry]:
    """Ours at every stage, and at each stage the peers that shard the same."""
    peers = [("ddp", 0), ("fsdp2", 2), ("fsdp2", 3)]
    if importlib.util.find_spec("deepspeed") is not None:
        peers += [("deepspeed", stage) for stage in range(4)]
    field = sorted([*(("dsx", stage) for stage in range(4)), *peers], key=lambda entry: entry[1])
    return [Entry(engine, stage, dtype) for dtype in dtypes for engine, stage in field]


def run(entry: Entry, *, warm: int, steps: int, timeout: float = 900.0) -> list[dict[str, Any]]:
    """One round of one contestant."""
    environment = {
        "PYTHONPATH": os.pathsep.join((str(MODEL), os.environ.get("PYTHONPATH", ""))),
        "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
        "LOCAL_SIZE": str(RANKS),
    }
    bf16 = entry.dtype == "bf16"
    arguments = {"engine": entry.engine, "stage": entry.stage, "bf16": bf16, "warm": warm, "steps": steps}
    target = "benchmarks.contestants:contest"
    return run_ranks(target, arguments, world=RANKS, environment=environment, timeout=timeout)


def compile_peers(field: Iterable[Entry]) -> None:
    """Let DeepSpeed compile its operations now; a lock left by a killed build would make it wait for ever."""
    for lock in EXTENSIONS.rglob("lock"):
        lock.unlink()
    if any(entry.engine == "deepspeed" for entry in field):
        run(Entry("deepspeed", 1, "fp32"), warm=0, steps=1, timeout=3000.0)


def score(rounds: list[list[dict[str, Any]]]) -> Score:
    """A contestant's rounds as tokens over time, memory of the fattest rank, and the mean last loss."""
    per_second, per_processor_second, rss = [], [], []
    for ranks in rounds:
        tokens = sum(rank["tokens"] for rank in ranks)
        steps = len(ranks[0]["walls"])
        wall = statistics.median(max(walls) for walls in zip(*(rank["walls"] for rank in ranks), strict=True))
        per_second.append(tokens / steps / wall)
        per_processor_second.append(tokens / sum(rank["processor"] for rank in ranks))
        rss.append(max(rank["rss"] for rank in ranks) / 2**20)
    loss = statistics.mean(rank["losses"][-1] for rank in rounds[0])
    return Score(per_second, per_processor_second, rss, loss)


def speed_rows(ours: Score, theirs: dict[str, Score], *, name: str, stage: int, loaded: bool) -> list[Row]:
    """Speed against each peer of the stage: the best of them is to be matched, one of them to be led."""
    table = []
    for measure, unit, decides in (
        ("per_second", "tokens/s", not loaded),
        ("per_processor_second", "tokens/CPU-s", loaded),
    ):
        mine = getattr(ours, measure)
        others = {peer: statistics.median(getattr(found, measure)) for peer, found in theirs.items()}
        best = max(others, key=lambda peer: others[peer])
        for peer, value in others.items():
            leader, lead = LEAD.get(stage, ("", 0.0))
            limit = max(1.0 if peer == best else 0.0, lead if peer == leader else 0.0)
            ratio = statistics.median(mine) / value
            goal = f"≥ {limit:.2f} × {peer}" if limit and decides else ""
            holds = ratio >= limit if goal else None
            what = f"{name}: {measure.replace('_', ' ')} beside {peer}"
            note = f"ours {spread(mine)}; theirs {spread(getattr(theirs[peer], measure))}"
            table.append(Row(what, statistics.median(mine), value, unit, ratio, limit or None, goal, holds, note))
    return table


def stage_rows(scores: dict[Entry, Score], *, dtype: str, stage: int, loaded: bool) -> list[Row]:
    """All rows of one stage in one precision."""
    ours = scores[Entry("dsx", stage, dtype)]
    theirs = {e.engine: s for e, s in scores.items() if (e.stage, e.dtype) == (stage, dtype) and e.engine != "dsx"}
    name = f"{dtype}, stage {stage}"
    reference = scores[Entry("ddp", 0, dtype)]
    apart = abs(ours.loss - reference.loss)
    table = [at_most(f"{name}: last loss", apart, LOSS_APART[dtype], unit="nats apart", goal="the loss of DDP")]
    if not theirs:
        return table
    table += speed_rows(ours, theirs, name=name, stage=stage, loaded=loaded)
    thinnest = min(theirs, key=lambda peer: statistics.median(theirs[peer].rss))
    mine, best = statistics.median(ours.rss), statistics.median(theirs[thinnest].rss)
    goal = "≤ the best peer's"
    table.append(Row(f"{name}: peak RSS", mine, best, "MiB", best / mine, 1.0, goal, mine <= best, f"peer: {thinnest}"))
    return table


def rows(*, short: bool) -> list[Row]:
    """Every stage, in fp32 and in bf16."""
    rounds, warm, steps = (1, 2, 5) if short else (3, 3, 12)
    loaded = os.getloadavg()[0] > BUSY
    dtypes = ("fp32", "bf16")
    field = entries(dtypes)
    compile_peers(field)
    found: dict[Entry, list[list[dict[str, Any]]]] = {entry: [] for entry in field}
    for turn in range(rounds):
        # Forth and back, so that a machine that warms up or slows down favours nobody.
        for entry in field if turn % 2 == 0 else reversed(field):
            found[entry].append(run(entry, warm=warm, steps=steps))
    scores = {entry: score(results) for entry, results in found.items()}
    return [
        row for d in dtypes for stage in range(4) for row in stage_rows(scores, dtype=d, stage=stage, loaded=loaded)
    ]
