"""The launcher's message: the cause first, the rest in a line each."""

from __future__ import annotations

import signal

from dsx.launch.failures import SHOWN, Failure, describe, exit_status, in_order

LOST = Failure(0, 1, "RuntimeError: connection closed", "Traceback of rank 0", when=10.5)
CAUSE = Failure(2, 1, "ValueError: boom\nmore", "Traceback of rank 2", when=10.0)
ENDED = Failure(1, -signal.SIGTERM)
KILLED = Failure(3, -signal.SIGKILL)


def test_the_first_failure_in_time_comes_first_with_its_traceback() -> None:
    text = describe([ENDED, LOST, CAUSE], world=3)
    assert text.startswith("rank 2 of 3 failed first: ValueError: boom\n\nTraceback of rank 2")
    assert "rank 0 failed 0.5 s later: RuntimeError: connection closed" in text
    assert "Traceback of rank 0" not in text
    assert "rank 1" not in text
    assert exit_status([ENDED, LOST, CAUSE]) == 1


def test_a_killed_rank_comes_before_those_that_lost_it() -> None:
    assert in_order([LOST, ENDED, KILLED])[0] is KILLED
    assert "rank 3 of 4 failed first: killed by SIGKILL" in describe([LOST, KILLED], world=4)
    assert exit_status([LOST, KILLED]) == 128 + 9


def test_status_of_a_rank_that_exits() -> None:
    assert exit_status([Failure(0, 3, "exit status 3", when=1.0)]) == 3
    assert exit_status([ENDED]) == 128 + 15


def test_many_failures_are_cut() -> None:
    text = describe([Failure(rank, 1, f"E{rank}", when=1.0 + rank) for rank in range(SHOWN + 4)], world=20)
    assert f"rank {SHOWN} failed" in text
    assert f"rank {SHOWN + 1} failed" not in text
    assert "and 3 more ranks" in text
