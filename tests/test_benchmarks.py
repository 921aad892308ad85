"""The benchmark harness: what a row says, what a missed goal does, and that numbers come back from ranks."""

from __future__ import annotations

import functools
import json
import sys
import types
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import plugins as plugin_costs
from benchmarks.bytes import formula
from benchmarks.idle import COUNT, write_plugins
from benchmarks.parity import LIMITS, MODELS, Case, deviations
from benchmarks.processes import RankFailed, run_ranks
from benchmarks.stranger import GREEN, StepFailed, run, steps
from benchmarks.table import Row, at_most, near


def give(found: list[Row], *, short: bool) -> list[Row]:
    return found


@pytest.fixture
def harness(monkeypatch):
    """The command line with two benchmarks of our own in place of two real ones."""
    made = {
        "parity": [at_most("kept", 0.5, 1.0, unit="s", goal="≤ 1")],
        "bytes": [near("missed", 1.02, 1.0, within=0.01, unit="MiB"), near("met", 1.009, 1.0, within=0.01, unit="MiB")],
    }
    for name, found in made.items():
        module = types.ModuleType(f"benchmarks.{name}")
        module.rows = functools.partial(give, found)
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", module)
    return command.main


def test_a_row_has_the_agreed_fields() -> None:
    assert [field.name for field in fields(Row)] == [
        *("what", "ours", "peer", "unit", "ratio", "limit", "goal", "holds", "note")
    ]


def test_a_met_goal_exits_with_0(harness, tmp_path) -> None:
    assert harness(["parity", "--json", str(tmp_path / "rows.json")]) == 0
    told = json.loads((tmp_path / "rows.json").read_text())
    assert told["tables"]["parity"][0]["holds"] is True
    assert {"processor", "cores", "date", "load", "versions"} <= told["machine"].keys()


def test_a_missed_goal_exits_with_1_and_says_so(harness, tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    assert harness(["parity", "bytes", "--markdown", str(page)]) == 1
    shown = capsys.readouterr().out
    assert "goal missed: missed" in shown
    assert "goal missed: met" not in shown
    assert "| missed | 1.02 | 1 | MiB | 1.02 | 0.01 | within 1% of the formula | NO |" in page.read_text()


def test_an_unknown_name_is_refused(harness, capsys) -> None:
    with pytest.raises(SystemExit):
        harness(["speed"])
    assert "parity, bytes, adam, start, train, plugins" in capsys.readouterr().err.replace("'", "")


def test_every_name_is_a_module_with_rows(root) -> None:
    for name in command.NAMES:
        text = (root / "benchmarks" / f"{name}.py").read_text()
        assert "def rows(*, short: bool) -> list[Row]:" in text, name


def test_ranks_give_their_results_in_order_and_failures_their_output() -> None:
    assert run_ranks("math:comb", {}, world=0) == []
    with pytest.raises(RankFailed, match="takes no keyword arguments"):
        run_ranks("math:comb", {"n": 5}, world=2)


@pytest.mark.parametrize(
    ("stage", "expected"), [(0, 16.0), (1, 4 + 12 / 4), (2, 2 + 14 / 4), (3, 16 / 4)], ids=["0", "1", "2", "3"]
)
def test_the_formula_of_state_bytes(stage: int, expected: float) -> None:
    assert formula(stage, 1000, 4) == expected * 1000
    assert formula(stage, 1000, 1) == 16_000


def test_parity_at_two_ranks_holds_for_a_cell_of_each_kind() -> None:
    """The whole matrix is the benchmark; here one cell a stage and dtype keeps the law in the test suite."""
    cases = [Case(stage, 3, dtype, MODELS[stage % 3]) for stage in (0, 1, 2, 3) for dtype in ("fp32", "bf16", "fp16")]
    found = dict(zip(cases, deviations(cases, 2), strict=True))
    assert {case: value for case, value in found.items() if value > LIMITS[case.dtype]} == {}


# Plugins --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "caught", "holds"),
    [
        (set().union(*plugin_costs.FAULTS.values()), 8, True),
        (set().union(*plugin_costs.FAULTS.values()) - {("leaks", "threads")}, 8, True),  # its variable is seen too
        (set().union(*plugin_costs.FAULTS.values()) - {("contract", "hook dsx_claim")}, 7, False),
    ],
    ids=["all", "one of two signs", "one missed"],
)
def test_faults_are_counted_by_what_the_check_reports(reported, caught, holds, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(plugin_costs, "checked", lambda project, name, folder: (reported, 1.0))
    *good, broken = plugin_costs.check_rows(tmp_path)
    assert (broken.ours, broken.holds, broken.goal) == (caught, holds, "8 of 8")
    assert ("missed: ['an unknown hook']" in broken.note) is not holds
    assert [row.holds for row in good] == [False] * len(plugin_costs.SAMPLES)  # what a good one is reported for


def test_idle_plugins_are_found_and_add_no_call_to_a_step(tmp_path) -> None:
    """The counts that the benchmark compares; its times need a quiet machine, and these do not."""
    write_plugins(tmp_path)
    without, with_plugins = plugin_costs.side_by_side(tmp_path, blocks=1, steps=1, turn=3)
    assert (without["idle"], with_plugins["idle"]) == (0, COUNT)
    assert with_plugins["calls"] == without["calls"] > 100
    assert len(with_plugins["walls"]) == len(without["processor"]) == 1


def test_a_strangers_step_that_fails_stops_the_walk_and_shows_its_output(tmp_path) -> None:
    shout = [sys.executable, "-c", "print('as written'); raise SystemExit(3)"]
    with pytest.raises(StepFailed, match="ended with 3:\nas written"):
        run(shout, folder=tmp_path)
    with pytest.raises(StepFailed, match=r"did not say \['acme'\]"):
        run([sys.executable, "-c", "print('nothing')"], folder=tmp_path, wanted=["acme"])
    assert set(GREEN) < set(steps(Path(sys.executable), "acme-metrics"))
