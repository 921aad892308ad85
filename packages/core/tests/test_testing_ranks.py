"""Ranks for tests: results, failures in order, deadlines, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsx.testing.ranks import RanksFailed, run_ranks


def _facts(word: str) -> tuple[int, int, str, str, int, str]:
    return (
        dist.get_rank(),
        dist.get_world_size(),
        os.environ["LOCAL_RANK"],
        word,
        torch.get_num_threads(),
        os.environ["DSX_TEST_WORD"],
    )


def test_results_come_by_rank() -> None:
    found = run_ranks(_facts, "hello", world=3, env={"DSX_TEST_WORD": "env"})
    assert found == [(rank, 3, str(rank), "hello", 1, "env") for rank in range(3)]


def _second_fails() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the second rank is at fault")
    dist.barrier()


def test_first_failing_rank_comes_first() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(_second_fails, world=3)
    assert caught.value.failures[0].rank == 1
    text = str(caught.value)
    assert text.startswith("rank 1 of 3 failed first:")
    assert text.index("the second rank is at fault") < len(text.partition("later:")[0])


def _sleeps_with_a_child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["DSX_TEST_PIDS"], "a") as file:
        file.write(f"{os.getpid()}\n{child.pid}\n")
    if dist.get_rank() == 0:
        time.sleep(600)


def test_deadline_shows_where_a_rank_stands_and_leaves_no_process(tmp_path: Any) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(RanksFailed, match="still running after 3 s") as caught:
        run_ranks(_sleeps_with_a_child, deadline=3.0, env={"DSX_TEST_PIDS": str(pids)})
    assert "_sleeps_with_a_child" in str(caught.value)
    assert [failure.rank for failure in caught.value.failures] == [0]
    numbers = [int(line) for line in pids.read_text().split()]
    assert len(numbers) == 4
    until = time.monotonic() + 5
    while time.monotonic() < until and any(_alive(number) for number in numbers):
        time.sleep(0.05)
    assert [number for number in numbers if _alive(number)] == []


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _killed() -> None:
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_killed_rank_is_named_with_its_signal() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(_killed)
    assert caught.value.failures[0].rank == 0
    assert "SIGKILL" in caught.value.failures[0].reason


def _tensor() -> torch.Tensor:
    return torch.full((3,), float(dist.get_rank()))


def test_tensors_come_back() -> None:
    assert [t.tolist() for t in run_ranks(_tensor)] == [[0.0] * 3, [1.0] * 3]


def test_only_functions_that_a_rank_can_find() -> None:
    with pytest.raises(TypeError, match="top of a module"):
        run_ranks(lambda: None)


def _no_group() -> bool:
    return dist.is_initialized()


def test_without_a_process_group() -> None:
    assert run_ranks(_no_group, world=1, init=False) == [False]


def test_a_test_takes_a_quarter_of_a_second() -> None:
    run_ranks(_tensor)
    times = []
    for _ in range(3):
        start = time.monotonic()
        run_ranks(_tensor)
        times.append(time.monotonic() - start)
    assert min(times) < 2.0, times
