"""The hang report: who is behind, where ranks parted, which module was called unequally."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsx.comm.collectives import Collectives
from dsx.comm.journal import KEPT, Journal
from dsx.comm.report import compose
from dsx.errors import CommError
from dsx.mesh.init import init_distributed
from dsx.mesh.mesh import Mesh
from dsx.plugin.types import MeshAxis
from dsx.testing.ranks import run_ranks

DEADLINE = 1.5


def _group(deadline: float = DEADLINE) -> Collectives:
    return Collectives(dist.group.WORLD, name="data", deadline=deadline)


def _report(group: Collectives, error: CommError, since: float) -> tuple[str, float]:
    took = time.monotonic() - since
    group.close()
    return str(error), took


def _uneven_calls() -> tuple[str, float]:
    group = _group()
    whole = torch.ones(64 * group.size)
    start = time.monotonic()
    try:
        group.all_gather(whole, torch.ones(64), site="heads.A gather")
        for _ in range(1 if group.rank == 0 else 3):
            group.all_gather(whole, torch.ones(64), site="heads.B gather")
        group.all_reduce(torch.ones(70_000), site="heads.B reduce")
    except CommError as error:
        return _report(group, error, start)
    raise AssertionError("the uneven calls went through")


@pytest.mark.parametrize("world", [2, 3])
def test_uneven_calls_of_one_module_are_named_with_their_counts(world: int) -> None:
    """B32: rank 0 calls head B once, the others three times: every rank raises, naming B and the counts."""
    found = run_ranks(_uneven_calls, world=world, deadline=20.0)
    assert len({report for report, _ in found}) == 1
    report = found[0][0]
    assert "rank 0 waits at 'heads.B reduce'" in report
    assert "rank 1 waits at 'heads.B gather'" in report
    others = "".join(f", rank {rank} 2" for rank in range(1, world))
    assert f"unequal calls of 'heads.B gather' in this update: rank 0 1{others}" in report
    assert "the ranks parted at call 2" in report
    assert max(took for _, took in found) < 10


def _unequal_sizes() -> tuple[str, float]:
    group = _group()
    start = time.monotonic()
    try:
        group.all_reduce(torch.ones(10 if group.rank else 20_000), site="norm")
    except CommError as error:
        return _report(group, error, start)
    raise AssertionError("unequal sizes went through")


def test_unequal_sizes_are_reported_and_never_mixed() -> None:
    for report, took in run_ranks(_unequal_sizes, deadline=20.0):
        assert re.search(r"rank 0 waits at 'norm' \(call 0: all_reduce sum, 20000 x float32\)", report)
        assert re.search(r"rank 1 waits at 'norm' \(call 0: all_reduce sum, 10 x float32\)", report)
        assert took < 10


def _busy_elsewhere() -> tuple[str, float]:
    group = _group()
    group.barrier(site="start")
    start = time.monotonic()
    try:
        if group.rank == 1:
            _long_computation()
        group.all_reduce(torch.ones(4), site="blocks.0 reduce")
    except CommError as error:
        return _report(group, error, start)
    raise AssertionError("rank 1 came in time")


def _long_computation() -> None:
    time.sleep(5)


def test_a_rank_in_no_collective_answers_with_its_place_in_the_code() -> None:
    reports = [report for report, _ in run_ranks(_busy_elsewhere, deadline=20.0)]
    assert reports[0] == reports[1]
    assert "rank 0 waits at 'blocks.0 reduce'" in reports[0]
    assert re.search(r"rank 1 is after 'start' .*, in no collective, \S+:\d+ in _long_computation", reports[0])
    assert "behind: rank 1 (1 of 2 calls)" in reports[0]


def _leaves_early() -> tuple[str, float] | None:
    group = _group()
    group.barrier(site="start")
    start = time.monotonic()
    if group.rank == 1:
        group.close()
        dist.destroy_process_group()
        return None
    try:
        group.all_reduce(torch.ones(4), site="extra batch")
    except CommError as error:
        return _report(group, error, start)
    raise AssertionError("nobody was there")


def test_a_rank_that_left_is_named_at_once() -> None:
    report, took = run_ranks(_leaves_early, deadline=20.0)[0]
    assert "'extra batch' of group 'data' lost a rank" in report
    assert "rank 1 has finished and left after 1 calls" in report
    assert took < DEADLINE + 1


def _after_a_report() -> list[str]:
    group = _group()
    messages = []
    for _ in range(2):
        try:
            group.all_reduce(torch.ones(2 + group.rank), site="a")
        except CommError as error:
            messages.append(str(error))
    group.close()
    return messages


def test_a_reported_group_stays_refused() -> None:
    for first, second in run_ranks(_after_a_report, deadline=20.0):
        assert first == second


def _verified(equal: bool) -> str:
    group = _group()
    site = "same" if equal else f"rank {group.rank}"
    group.journal.add("all_reduce sum", "float32", 4, site)
    try:
        group.verify(site="end of update")
        found = ""
    except CommError as error:
        found = str(error)
    group.close()
    return found


def test_verify_compares_what_the_ranks_did() -> None:
    assert run_ranks(_verified, True) == ["", ""]


def _position(**changes: Any) -> dict[str, Any]:
    journal = Journal()
    for call in range(KEPT + 10):
        journal.add("all_gather", "float32", call, f"blocks.{call % 3} gather")
    place = {
        "groups": {"data": journal.as_plain()},
        "waiting": ("data", KEPT + 9),
        "where": "a.py:1 in f",
        "left": False,
    }
    return {**place, **changes}


def test_report_of_ranks_that_gave_no_answer_or_wait_elsewhere() -> None:
    positions = {0: _position(), 1: None, 2: _position(waiting=("tensor", 4)), 3: _position(groups={}, waiting=None)}
    report = compose(positions, group="data", cause="it hangs")
    assert report.startswith("it hangs:\n")
    assert "rank 1 gave no answer" in report
    assert "rank 2 waits in another group, 'tensor', at call 4" in report
    assert "rank 3 is before its first call, in no collective" in report
    assert f"behind: rank 3 (0 of {KEPT + 10} calls)" in report


def test_equal_ranks_have_no_parting() -> None:
    report = compose({0: _position(), 1: _position()}, group="data", cause="it hangs")
    assert "parted" not in report
    assert "unequal" not in report
    assert "behind" not in report


def test_journal_keeps_the_last_calls_and_counts_from_the_mark() -> None:
    journal = Journal()
    for call in range(KEPT + 5):
        journal.add("all_reduce sum", "float32", call, "a")
    assert [record.seq for record in journal.records()] == list(range(5, KEPT + 5))
    assert journal.counts["a"] == KEPT + 5
    journal.mark()
    journal.add("all_reduce sum", "float32", 1, "b")
    assert dict(journal.counts) == {"b": 1}
    assert journal.seq == KEPT + 6


def _hang_across_groups() -> tuple[str, float]:
    axes = (MeshAxis("data", 2), MeshAxis("tensor", 2))
    start = time.monotonic()
    with Mesh(axes, world=init_distributed(), timeout=DEADLINE) as mesh:
        data, tensor = mesh.group("data"), mesh.group("tensor")
        try:
            if mesh.world.rank == 3:
                time.sleep(4)
            if mesh.world.rank == 2:
                tensor.all_reduce(torch.ones(1), site="attention reduce")
            data.all_reduce(torch.ones(1), site="blocks.0 reduce")
        except CommError as error:
            return str(error), time.monotonic() - start
    raise AssertionError("the sleeper came in time")


def test_one_report_for_ranks_that_wait_in_different_groups() -> None:
    found = run_ranks(_hang_across_groups, world=4, deadline=30.0)
    assert len({report for report, _ in found}) == 1
    assert "did not complete within 1.5 s" in found[0][0]
    assert max(took for _, took in found) < 10
