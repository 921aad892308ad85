"""The backend's own collectives behind the same calls (here gloo's, on devices NCCL's), and hangs they do not see."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dsx.comm.collectives import Collectives
from dsx.comm.exchange import Scratch
from dsx.comm.journal import Record
from dsx.comm.transport import NativeTransport, Pending
from dsx.errors import CommError
from dsx.testing.ranks import run_ranks


def _group() -> Collectives:
    world = dist.group.WORLD
    assert world is not None
    transport = NativeTransport(world, device=torch.device("cpu"))
    return Collectives(world, name="data", deadline=1.0, transport=transport)


def _operations() -> tuple[list[float], list[float], list[float], list[float], list[int]]:
    group = _group()
    rank, size = group.rank, group.size
    reduced = torch.full((4,), float(rank))
    work = group.all_reduce(reduced, site="a", wait=False)
    work.wait()
    shard = torch.empty(2, dtype=torch.float32)
    group.reduce_scatter(shard, torch.arange(2.0 * size).bfloat16(), site="b")
    whole = torch.empty(2 * size)
    group.all_gather(whole, shard, site="c")
    told = torch.full((3,), float(rank))
    group.broadcast(told, source=1, site="d")
    objects = group.exchange_objects(rank, site="e")
    group.barrier(site="f")
    group.verify(site="g")
    group.close()
    return reduced.tolist(), shard.tolist(), whole.tolist(), told.tolist(), objects


def test_the_backends_own_collectives() -> None:
    for rank, found in enumerate(run_ranks(_operations)):
        whole = [0.0, 2.0, 4.0, 6.0]
        assert found == ([1.0] * 4, whole[2 * rank : 2 * rank + 2], whole, [1.0] * 3, [0, 1])


class _NeverDone:
    """As a device's collective whose peer does not come: waiting returns, the result does not."""

    sent = 0

    def finish(self, *, timeout: float | None) -> None:
        """The stream waits, the host goes on."""

    def finished(self) -> bool:
        """Never."""
        return False


class _Stuck(NativeTransport):
    severed = False

    def all_reduce(self, t: torch.Tensor, *, op: str, record: Record) -> Pending:
        return _NeverDone()

    def sever(self) -> None:
        self.severed = True


def _overdue() -> tuple[str, bool]:
    world = dist.group.WORLD
    assert world is not None
    transport = _Stuck(world, device=torch.device("cpu"))
    group = Collectives(world, name="data", deadline=1.0, transport=transport)
    group.all_reduce(torch.ones(4), site="blocks.7 reduce")
    until = time.monotonic() + 10
    while time.monotonic() < until:
        time.sleep(0.05)
        try:
            group.all_reduce(torch.ones(4), site="later")
        except CommError as error:
            group.close()
            return str(error), transport.severed
    return "no report", False


def test_a_device_collective_that_is_overdue_is_reported_at_the_next_call() -> None:
    reports = run_ranks(_overdue, deadline=30.0)
    assert reports[0] == reports[1]
    assert "all_reduce sum 'blocks.7 reduce' of group 'data' did not complete within 1 s" in reports[0][0]
    assert reports[0][1]  # what waits on the device is woken


def _parted() -> str:
    group = _group()
    for _ in range(1 + group.rank):
        group.journal.add("all_reduce sum", "float32", 4, "blocks.1 reduce")
    try:
        group.verify(site="end of update")
    except CommError as error:
        return str(error)
    finally:
        group.close()
    return ""


def test_ranks_that_have_parted_unseen_are_found_by_verify() -> None:
    for report in run_ranks(_parted, deadline=30.0):
        assert report.startswith("the calls of group 'data' differ between its ranks")
        assert "unequal calls of 'blocks.1 reduce' in this update: rank 0 1, rank 1 2" in report


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scratch_gives_back_what_fits_and_keeps_few(dtype: torch.dtype) -> None:
    scratch = Scratch()
    first = scratch.take(torch.empty(1000, dtype=dtype))
    assert (first.shape, first.dtype) == ((1000,), dtype)
    place = first.data_ptr()
    scratch.give([first])
    assert scratch.take(torch.empty(100, dtype=dtype)).data_ptr() != place  # too large to waste on it
    again = scratch.take(torch.empty(600, dtype=dtype))
    assert (again.data_ptr(), again.numel()) == (place, 600)
    scratch.give([again])
    assert scratch.take(torch.empty(1000, dtype=dtype)).data_ptr() == place
    scratch.give([torch.empty(n + 1) for n in range(20)])
    assert len(scratch._free) <= 4
    assert scratch.take(torch.empty(0, dtype=dtype)).numel() == 0


def test_deadlines_of_the_process_group_do_not_come_first() -> None:
    assert run_ranks(_slow_peer, deadline=30.0) == [2.0, 2.0]


def _slow_peer() -> float:
    short = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    group = Collectives(short, name="short", deadline=20.0)
    value = torch.ones(1)
    if group.rank == 1:
        time.sleep(2.0)
    group.all_reduce(value, site="patient")
    group.close()
    return value.item()
