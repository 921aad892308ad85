"""Collectives over real gloo ranks and over one process: the same results, the promised bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsx.comm.collectives import Collectives, Work
from dsx.errors import CommError
from dsx.testing.ranks import run_ranks
from dsx.testing.wire import settled_bytes

SIZES = [0, 1, 5, 1001, 20_000]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def _group() -> Collectives:
    return Collectives(dist.group.WORLD, name="data", deadline=30.0)


def _parts(numel: int, world: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """What each rank contributes: the same on every rank that asks."""
    generator = torch.Generator().manual_seed(numel)
    return [torch.randn(numel, generator=generator).to(dtype) for _ in range(world)]


def _summed(parts: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.float32 if parts[0].dtype in (torch.bfloat16, torch.float16) else parts[0].dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    return total.to(parts[0].dtype)


def _every_operation() -> None:
    group = _group()
    for dtype in DTYPES:
        for numel in SIZES:
            _check_all(group, numel, dtype)
    assert group.exchange_objects({"rank": group.rank}, site="objects") == [{"rank": r} for r in range(group.size)]
    group.barrier(site="end")
    group.close()


def _check_all(group: Collectives, numel: int, dtype: torch.dtype) -> None:
    rank, size = group.rank, group.size
    parts = _parts(numel, size, dtype)
    mine = parts[rank].clone()
    group.all_reduce(mine, site="all")
    assert torch.equal(mine, _summed(parts))
    largest = parts[rank].clone()
    group.all_reduce(largest, op="max", site="max")
    assert torch.equal(largest, torch.stack(parts).amax(0) if numel else largest)
    wholes = _parts(numel * size, size, dtype)
    shard = torch.empty(numel, dtype=dtype)
    group.reduce_scatter(shard, wholes[rank].clone(), site="scatter")
    own = slice(rank * numel, (rank + 1) * numel)
    assert torch.equal(shard, _summed(wholes)[own])
    in_place = wholes[rank].clone()
    group.reduce_scatter(in_place[own], in_place, site="scatter in place")
    assert torch.equal(in_place[own], shard)
    gathered = torch.empty(numel * size, dtype=dtype)
    group.all_gather(gathered, parts[rank], site="gather")
    assert torch.equal(gathered, torch.cat(parts))
    again = torch.zeros(numel * size, dtype=dtype)
    again[own] = parts[rank]
    group.all_gather(again, again[own], site="gather in place")
    assert torch.equal(again, gathered)
    told = parts[rank].clone()
    group.broadcast(told, source=size - 1, site="tell")
    assert torch.equal(told, parts[-1])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_operation_dtype_and_size(world: int) -> None:
    run_ranks(_every_operation, world=world)


def test_without_torch_distributed_a_group_of_one_does_the_local_thing() -> None:
    group = Collectives(name="alone")
    assert (group.rank, group.size, group.ranks) == (0, 1, (0,))
    for dtype in DTYPES:
        for numel in SIZES:
            _check_all(group, numel, dtype)
    assert group.exchange_objects("x", site="objects") == ["x"]
    group.barrier(site="end")
    assert group.account.total.bytes == 0


def _many_in_flight() -> None:
    group = _group()
    rank, size = group.rank, group.size
    reduced = [torch.full((5000,), float(rank + i)) for i in range(4)]
    gathered = [torch.empty(100 * size) for _ in range(4)]
    works: list[Work] = []
    for i in range(4):
        works.append(group.all_reduce(reduced[i], site=f"reduce {i}", wait=False))
        works.append(group.all_gather(gathered[i], torch.full((100,), float(10 * rank + i)), site="g", wait=False))
    order = range(len(works)) if rank == 0 else reversed(range(len(works)))
    for i in order:  # each rank waits in its own order
        works[i].wait()
        works[i].wait()
        assert works[i].done()
    for i in range(4):
        assert torch.equal(reduced[i], torch.full((5000,), float(sum(range(size)) + i * size)))
        assert gathered[i].view(size, 100)[:, 0].tolist() == [10.0 * r + i for r in range(size)]
    group.close()


@pytest.mark.parametrize("world", [2, 3])
def test_many_calls_under_way_are_waited_for_in_any_order(world: int) -> None:
    run_ranks(_many_in_flight, world=world, deadline=20.0)


def _wire(operation: str) -> tuple[float, float, float]:
    """(bytes sent by the kernel's count, by the account, size of the whole)."""
    group = _group()
    whole = torch.ones(300_000 * group.size)
    shard = torch.ones(300_000)
    group.barrier(site="warm")
    before, counted = settled_bytes(), group.account.total.bytes
    if operation == "reduce_scatter":
        group.reduce_scatter(shard, whole, site="wire")
    elif operation == "all_gather":
        group.all_gather(whole, shard, site="wire")
    else:
        group.all_reduce(whole, site="wire")
    counted = group.account.total.bytes - counted
    sent = settled_bytes() - before
    group.barrier(site="end")
    group.close()
    return sent, counted, whole.numel() * 4


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("operation", "rounds"), [("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", 2)])
def test_bytes_on_the_wire(operation: str, rounds: int, world: int) -> None:
    for sent, counted, whole in run_ranks(_wire, operation, world=world):
        wanted = rounds * whole * (world - 1) / world
        assert abs(sent - wanted) < 0.01 * wanted
        assert abs(counted - wanted) < 0.001 * wanted


def test_small_and_wrong_calls_are_refused_before_anything_moves() -> None:
    group = Collectives(name="alone")
    with pytest.raises(CommError, match="strides"):
        group.all_reduce(torch.ones(4, 4).t(), site="x")
    with pytest.raises(CommError, match="sum, max, min"):
        group.all_reduce(torch.ones(4), op="mean", site="x")
    with pytest.raises(CommError, match="'x': found a whole of 5 elements and a shard of 2"):
        group.reduce_scatter(torch.ones(2), torch.ones(5), site="x")
    with pytest.raises(CommError, match="source 1"):
        group.broadcast(torch.ones(2), source=1, site="x")
    with pytest.raises(CommError, match="make them equal"):
        group.all_gather(torch.ones(2), torch.ones(2, dtype=torch.bfloat16), site="x")


def _coalesced(wait: bool) -> list[list[float]]:
    group = _group()
    outputs = [torch.empty(2 * group.size), torch.empty(3 * group.size)]
    shards = [torch.full((2,), float(group.rank)), torch.full((3,), 10.0 + group.rank)]
    works = [
        group.all_gather(output, shard, site="small", wait=wait) for output, shard in zip(outputs, shards, strict=True)
    ]
    for work in works:
        work.wait()
    group.close()
    return [output.tolist() for output in outputs]


@pytest.mark.parametrize("wait", [True, False])
def test_two_small_gathers_on_gloo(wait: bool) -> None:
    """B83: two small tensors gathered on gloo, at once and under way together."""
    wanted = [[0.0, 0.0, 1.0, 1.0], [10.0, 10.0, 10.0, 11.0, 11.0, 11.0]]
    assert run_ranks(_coalesced, wait) == [wanted, wanted]


def _same_bits() -> Any:
    group = _group()
    torch.manual_seed(group.rank)
    whole = torch.randn(3000 * group.size)
    reduced = whole.clone()
    group.all_reduce(reduced, site="a")
    shard = torch.empty(3000)
    group.reduce_scatter(shard, whole, site="b")
    again = torch.empty_like(whole)
    group.all_gather(again, shard, site="c")
    group.close()
    return reduced, again


def test_every_layout_sums_to_the_same_bits() -> None:
    found = run_ranks(_same_bits, world=3)
    for reduced, again in found:
        assert torch.equal(reduced, found[0][0])
        assert torch.equal(again, found[0][0])


def test_account_counts_calls_bytes_and_seconds() -> None:
    group = Collectives(name="alone")
    group.all_reduce(torch.ones(3), site="a")
    group.all_reduce(torch.ones(3), site="a")
    group.all_gather(torch.ones(3), torch.ones(3), site="b")
    assert {op: cost.calls for op, cost in group.account.by_op.items()} == {"all_reduce": 2, "all_gather": 1}
    group.account.reset()
    assert group.account.total.calls == 0
