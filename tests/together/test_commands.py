"""The command line with everything installed: all plugins are found, and ours pass the check they are checked by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DISTRIBUTIONS = ("dsx-core", "dsx-zero", "dsx-native", "acme-sparse-adam")


def dsx(*arguments: str, wanted: int = 0) -> str:
    """What the command writes."""
    command = [str(Path(sys.executable).with_name("dsx")), *arguments]
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == wanted, done.stdout + done.stderr
    return done.stdout


def test_every_plugin_is_listed_with_its_distribution() -> None:
    shown = dsx("plugins")
    assert [name for name in DISTRIBUTIONS if name not in shown] == []
    assert shown.count("active") == len(DISTRIBUTIONS)
    for offered in ("section zero_optimization", "kernel adam_step=native", "optimizer acme_sparse_adam"):
        assert offered in " ".join(shown.split()), offered


def test_the_report_has_a_line_of_each_that_reports() -> None:
    shown = dsx("report")
    assert "instruction set" in shown


@pytest.mark.parametrize("name", DISTRIBUTIONS[1:])
def test_each_plugin_passes_the_check(name: str) -> None:
    assert name in dsx("plugin", "check", name)
