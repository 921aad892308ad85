"""A plugin that ends, blocks or litters the process that imports it: each is a finding, and the rest is checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from check_subjects import on_disk

from dsx.authoring.check.cost import cost, loads
from dsx.authoring.check.findings import Verdict
from dsx.authoring.check.process import Job, run_group
from dsx.authoring.check.run import check_target


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dsx.authoring.check.cost.RUNS", 1)
    monkeypatch.setattr("dsx.authoring.check.cost.MOST_RUNS", 1)
    return tmp_path


def of_import(job: Job) -> str:
    """What the one bad finding of an import says."""
    found = loads(job)
    assert not found.works
    (finding,) = [finding for finding in found.findings if finding.bad]
    assert finding.check == "import"
    return finding.found


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("\nimport a_module_that_is_not_there\n", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("\nraise SystemExit('I want out')\n", "raised SystemExit: I want out"),
        ("\nimport os\nos._exit(5)\n", "ended with exit status 5 during import"),
    ],
)
def test_import_that_fails_is_told(disk: Path, code: str, words: str) -> None:
    assert words in of_import(on_disk(disk, "failing", code))


def test_import_that_hangs_is_ended_and_the_rest_left_out(disk: Path) -> None:
    job = on_disk(disk, "hanging", "\nimport threading\nthreading.Event().wait()\n")
    found = list(check_target(job))
    (told,) = [finding.found for finding in found if finding.bad]
    assert "was still silent after 2 s during import" in told
    assert "it wrote: File" in told
    others = {finding.area for finding in found if finding.verdict is Verdict.NOT_APPLICABLE}
    assert others >= {"numerics", "failures", "import cost"}


def test_process_that_does_not_end_is_told(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsx.authoring.check.process.LINGER", 0.5)
    code = "\nimport threading\nthreading.Thread(target=threading.Event().wait, name='acme-stays').start()\n"
    found = loads(on_disk(disk, "staying", code))
    bad = {finding.check: finding.found for finding in found.findings if finding.bad}
    assert found.works
    assert set(bad) == {"import: threads", "end of the process"}
    assert "it still ran 0.5 s later" in bad["end of the process"]


LITTER = """
import os, random, threading, warnings
import torch

print("hello")
os.environ["ACME_LITTER"] = "1"
torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
warnings.simplefilter("ignore")
KEPT = open("litter.txt", "w")
threading.Thread(target=threading.Event().wait, name="acme-litter", daemon=True).start()
"""


def test_import_that_litters_is_told_thing_by_thing(disk: Path) -> None:
    found = loads(on_disk(disk, "littering", LITTER))
    assert found.works
    bad = {finding.check.removeprefix("import: "): finding.found for finding in found.findings if finding.bad}
    assert set(bad) == {
        "output",
        "environment",
        "random numbers",
        "torch settings",
        "warning filters",
        "open files",
        "files",
        "threads",
    }
    assert "'hello'" in bad["output"]
    assert "ACME_LITTER" in bad["environment"]
    assert "acme-litter" in bad["threads"]
    assert "torch.float64" in bad["torch settings"]
    assert "litter.txt" in bad["open files"]


def test_slow_import_is_told_with_its_module(disk: Path) -> None:
    (disk / "acme_tables.py").write_text("import time\ntime.sleep(0.3)\n")
    job = on_disk(disk, "slow", "\nimport acme_tables\n")
    found = loads(job)
    seconds, alone = cost(job, found)
    assert (seconds.verdict, alone.verdict) == (Verdict.SLOW, Verdict.OK)
    assert "the most in acme_tables" in seconds.found


ENDINGS = """
import os, signal

@hookimpl
def dsx_claims():
    os._exit(3)

@hookimpl
def dsx_mesh_axes():
    os.kill(os.getpid(), signal.SIGSEGV)

@hookimpl
def dsx_passes():
    return [5]
"""


def test_hooks_that_end_their_process_are_told_and_the_rest_is_checked(disk: Path) -> None:
    outcome = run_group("contract", on_disk(disk, "ending", ENDINGS))
    bad = {finding.check: finding.found for finding in outcome.findings if finding.bad}
    assert outcome.ending == ""
    assert "exit status 3" in bad["dsx_claims"]
    assert "SIGSEGV" in bad["dsx_mesh_axes"]
    assert "wanted ModelPass" in bad["hook dsx_passes"]
    assert "names" in {finding.check for finding in outcome.findings}


def test_no_process_and_no_variable_is_left(disk: Path) -> None:
    job = on_disk(disk, "children", "\nimport subprocess\nsubprocess.Popen(['sleep', '300'])\n")
    before = dict(os.environ)
    found = loads(job)
    assert any("process" in finding.found for finding in found.findings if finding.check == "import: child processes")
    assert dict(os.environ) == before
