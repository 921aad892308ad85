"""The whole quickstart: two ranks under ZeRO-2, a checkpoint half-way, then one rank under ZeRO-3 from there on.

Arguments that it does not know go to train.py, such as --text FILE or --width 128.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import dsx
from show import picture

HERE = Path(__file__).parent
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
"""How far the evaluation loss may move, in nats, by being saved on two ranks and resumed on one.

The weights are the same to the last bit; what moves is the order in which a sum of activations is rounded.
"""


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the part of it that is for train.py."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="updates in all, half of them in each run")
    parser.add_argument("--ranks", type=int, default=ranks_of_this_machine(), help="processes of the first run")
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    return parser.parse_known_args()


def ranks_of_this_machine() -> int:
    """Two, but never more than one a GPU."""
    return min(2, torch.cuda.device_count()) if torch.cuda.is_available() else 2


def run(ranks: int, stage: int, args: argparse.Namespace, rest: list[str], *more: str, report: str) -> dict[str, Any]:
    """Run train.py on so many ranks; give its report."""
    command = [sys.executable, "-m", "dsx", "run", "--nproc", str(ranks), str(HERE / "train.py")]
    command += ["--stage", str(stage), "--steps", str(args.steps), "--out", str(args.out), "--report", report]
    finished = subprocess.run([*command, *more, *rest], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)
    told: dict[str, Any] = json.loads((args.out / report).read_text(encoding="utf-8"))
    return told


def main() -> int:
    """Both runs, then the report. The exit status is 1 where the second did not go on from the first one's loss."""
    args, rest = arguments()
    console, started = Console(), time.perf_counter()
    half = args.steps // 2
    console.rule(f"updates 1 to {half}: {args.ranks} ranks, ZeRO stage 2")
    first = run(args.ranks, 2, args, rest, "--until", str(half), report="first.json")
    console.rule(f"updates {half + 1} to {args.steps}: 1 rank, ZeRO stage 3, from the checkpoint")
    resumed = run(1, 3, args, rest, "--resume", report="resumed.json")

    saved_at, resumed_at = first["evaluation_at_end"], resumed["evaluation_at_start"]
    tolerance = TOLERANCE["bf16" if "bf16" in resumed["precision"] else "fp32"]
    continuous = resumed["first_update"] == half and abs(saved_at - resumed_at) <= tolerance
    report: dict[str, Any] = {
        "steps": args.steps,
        "seconds": time.perf_counter() - started,
        "tokens": first["tokens"] + resumed["tokens"],
        "loss": {"saved": saved_at, "resumed": resumed_at, "tolerance": tolerance, "continuous": continuous},
        "evaluation": {"before": first["evaluation_at_start"], "after": resumed["evaluation_at_end"]},
        "versions": {"dsx": dsx.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "runs": {"first": first, "resumed": resumed},
    }
    (args.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    curves = [
        (f"ranks: {told['ranks']}, ZeRO stage {told['stage']}", told["first_update"], told["losses"])
        for told in (first, resumed)
    ]
    picture(curves, args.out / "loss.png", title="A small GPT learns Python's library, byte by byte")

    console.rule("what it writes")
    console.print(resumed["sample"], markup=False, highlight=False)
    console.rule()
    before, after = report["evaluation"].values()
    console.print(f"evaluation loss {before:.4f} → {after:.4f} nats a byte")
    verdict = "goes on from the same loss" if continuous else "DOES NOT go on from the same loss"
    console.print(f"the second run {verdict}: {saved_at:.5f} → {resumed_at:.5f} (± {tolerance})")
    console.print(f"{report['seconds']:.0f} s; see {args.out / 'report.json'} and {args.out / 'loss.png'}")
    return 0 if continuous else 1


if __name__ == "__main__":
    sys.exit(main())
