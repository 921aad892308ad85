"""The whole check: of a sample that is broken in eight ways nothing stays hidden, of good ones nothing is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsx.authoring.check import Verdict, check_plugin
from dsx.authoring.project import install_project

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests" / "samples"

FAULTS = {
    ("import cost", "seconds"): "acme_broken.tables",
    ("contract", "hook dsx_claim"): "did you mean 'dsx_claims'",
    ("contract", "hook dsx_passes"): "asks for mesh",
    ("contract", "optimizer adam"): "taken by the core",
    ("contract", "hook dsx_report"): "RuntimeError: the clock has stopped",
    ("contract", "hook dsx_mesh_axes"): "wanted MeshAxis",
    ("numerics", "kernel lion_step=hasty"): "lion_step=hasty",
    ("leaks", "threads"): "thread 'acme-clock'",
    ("leaks", "environment"): "ACME_CLOCK",
}
"""(area, check) -> words of what is found. The last of the eight faults is seen twice: a thread, and a variable."""


def test_sample_broken_in_eight_ways_hides_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_project(SAMPLES / "acme-broken", into=tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dsx.authoring.check.cost.RUNS", 1)
    monkeypatch.setattr("dsx.authoring.check.cost.MOST_RUNS", 1)
    report = check_plugin("acme-broken")
    found = {(finding.area, finding.check): finding for finding in report.wrong}
    assert set(found) == set(FAULTS), report.markdown()
    for key, words in FAULTS.items():
        assert words in found[key].found
        assert found[key].remedy
    assert found[("import cost", "seconds")].verdict is Verdict.SLOW
    assert "acme_broken.plugin" not in sys.modules


def test_example_of_a_third_party_has_nothing_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_project(ROOT / "examples" / "third_party_plugin", into=tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dsx.authoring.check.cost.RUNS", 1)
    report = check_plugin("acme-sparse-adam")
    assert report.wrong == (), report.markdown()
    checks = {(finding.area, finding.check.partition(" ")[0]) for finding in report.findings}
    assert {("numerics", "kernel"), ("numerics", "optimizer")} <= checks


def test_good_sample_passes_by_command(tmp_path: Path) -> None:
    install_project(SAMPLES / "acme-metrics", into=tmp_path / "site")
    command = [sys.executable, "-m", "dsx", "plugin", "check", "acme-metrics"]
    command += ["--json", "found.json", "--markdown", "found.md"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert [finding for finding in found["findings"] if finding["result"] in ("wrong", "slow")] == []
    assert (done.returncode, done.stderr) == (0, "")
    assert "acme_metrics.enabled=true" in done.stdout
    assert done.stdout.rstrip().endswith("checks of acme-metrics (acme-metrics 1.2): 0 wrong, 0 slow")
    assert (tmp_path / "found.md").read_text().startswith("# ")
    areas = {finding["area"] for finding in found["findings"]}
    assert areas == {"contract", "numerics", "failures", "import cost", "leaks"}
