"""Runs benchmarks by name, prints their tables, and exits with 1 where a goal does not hold."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.table import Row, markdown, show

NAMES = ("parity", "bytes", "adam", "start", "train", "plugins")
"""Each is a module with ``rows(*, short: bool) -> list[Row]``."""
VERSIONED = ("dsx-core", "dsx-zero", "dsx-native", "torch", "deepspeed")


def machine() -> dict[str, str]:
    """Where and when this runs."""
    cpu_info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in cpu_info.read_text().splitlines() if "model name" in line]
    installed = {d.name: d.version for d in metadata.distributions()}
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {installed[name]}" for name in VERSIONED if name in installed),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load": load(),
    }


def load() -> str:
    """The machine's load averages over 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def measure(name: str, *, short: bool, console: Console) -> list[Row]:
    """The rows of one benchmark, printed."""
    started, before = time.perf_counter(), load()
    module = importlib.import_module(f"benchmarks.{name}")
    found: list[Row] = module.rows(short=short)
    took = f"{time.perf_counter() - started:.0f} s, load {before} → {load()}"
    show(found, title=f"{name} ({took})", console=console)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--short", action="store_true", help="fewer sizes and rounds: minutes instead of half an hour")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="add the tables to that page")
    args = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    where = machine()
    for key, value in where.items():
        console.print(f"{key:<10} {value}", highlight=False)
    tables = {name: measure(name, short=args.short, console=console) for name in dict.fromkeys(args.names)}
    if args.json:
        args.json.write_text(json.dumps(record(where, tables), indent=1), encoding="utf-8")
    if args.markdown:
        with args.markdown.open("a", encoding="utf-8") as page:
            page.write(f"\n## {where['date']}\n\n" + "".join(f"- {key}: {value}\n" for key, value in where.items()))
            page.writelines("\n" + markdown(found, title=name) for name, found in tables.items())
    missed = [row.what for found in tables.values() for row in found if row.holds is False]
    for what in missed:
        console.print(f"goal missed: {what}", style="bold red")
    return 1 if missed else 0


def record(where: dict[str, str], tables: dict[str, list[Row]]) -> dict[str, Any]:
    """The tables as plain data."""
    return {"machine": where, "tables": {name: [asdict(row) for row in found] for name, found in tables.items()}}


if __name__ == "__main__":
    sys.exit(main())
