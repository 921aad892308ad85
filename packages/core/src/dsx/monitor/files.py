"""Metrics in files of this machine: CSV and JSON lines. A run that is resumed goes on in the same files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO

DEFAULT_ROOT = "runs"


def run_folder(output_path: str, job_name: str) -> Path:
    """Folder of a run's files, made if need be: ``output_path`` (empty: ``runs``) and the run's name."""
    folder = Path(output_path or DEFAULT_ROOT) / job_name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_name(metric: str) -> str:
    """A metric's name as a file's: ``Train/loss`` is ``Train_loss``."""
    return re.sub(r"[^\w.+-]+", "_", metric)


class CsvMonitor:
    """One file a metric, with a line ``step,value`` each time it is written."""

    def __init__(self, *, output_path: str = "", job_name: str = "DeepSpeedJobName") -> None:
        self.folder = run_folder(output_path, job_name)
        self._files: dict[str, IO[str]] = {}

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Append one line to each metric's file."""
        for name, value in values.items():
            file = self._files.get(name)
            if file is None:
                path = self.folder / f"{file_name(name)}.csv"
                fresh = not path.exists() or not path.stat().st_size
                file = self._files[name] = path.open("a", newline="", encoding="utf-8")
                if fresh:
                    csv.writer(file).writerow(["step", name])
            csv.writer(file).writerow([step, repr(float(value))])
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class JsonLinesMonitor:
    """One file ``metrics.jsonl``, with an object ``{"step": …, metric: value, …}`` a line; inf and nan as strings."""

    def __init__(self, *, output_path: str = "", job_name: str = "DeepSpeedJobName") -> None:
        self.path = run_folder(output_path, job_name) / "metrics.jsonl"
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Append one line."""
        shown = {name: float(value) if math.isfinite(value) else str(float(value)) for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **shown}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
