"""Exchanges of equal parts, and sums and gathers whose tensors travel encoded: results, bits, bytes, hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dsx.codecs.bfloat16 import Bf16
from dsx.codecs.integer8 import Int8
from dsx.comm.coded import all_gather_coded, all_reduce_coded, reduce_scatter_coded
from dsx.comm.collectives import Collectives
from dsx.comm.transport import NativeTransport
from dsx.errors import CommError
from dsx.plugin.roles import Codec
from dsx.plugin.types import World
from dsx.testing.fake import FakeMesh
from dsx.testing.wire import settled_bytes

Ranks = Callable[..., list[Any]]
WORLDS = (1, 2, 3, 4)
SIZES = (0, 1, 5, 700)
DTYPES = (torch.float32, torch.bfloat16, torch.int16, torch.uint8, torch.bool, torch.float64, torch.complex64)
every_world = pytest.mark.parametrize("world", WORLDS)


class Plain:
    """A codec that loses nothing: fp32, byte by byte."""

    name = "plain"

    def packed_bytes(self, numel: int) -> int:
        """Four for each number."""
        return 4 * numel

    def encode(self, values: Tensor, packed: Tensor) -> None:
        """The bytes of the numbers."""
        packed.copy_(values.float().view(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        """The numbers again."""
        values.copy_(packed.clone().view(torch.float32))


class Odd(Plain):
    """Takes more room for odd numbers of numbers: the longest part is not always the largest."""

    name = "odd"

    def packed_bytes(self, numel: int) -> int:
        """A few more for an odd number."""
        return 4 * numel + 9 * (numel % 2)

    def encode(self, values: Tensor, packed: Tensor) -> None:
        """The bytes of the numbers, then nothing."""
        super().encode(values, packed[: 4 * values.numel()])

    def decode(self, packed: Tensor, values: Tensor) -> None:
        """The numbers again."""
        super().decode(packed[: 4 * values.numel()], values)


def group_of(native: bool = False) -> Collectives:
    world = dist.group.WORLD
    assert world is not None
    transport = NativeTransport(world, device=torch.device("cpu")) if native else None
    return Collectives(world, name="data", deadline=30.0, transport=transport)


def numbers(numel: int, world: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each rank contributes: the same on every rank that asks."""
    generator = torch.Generator().manual_seed(numel)
    return [torch.randn(numel, generator=generator).mul(50).to(dtype) for _ in range(world)]


def exchanged(native: bool) -> list[str]:
    """Cases in which the parts did not arrive, or were miscounted."""
    group, wrong = group_of(native), []
    rank, size = group.rank, group.size
    for dtype in DTYPES:
        for numel in SIZES:
            wholes = numbers(numel * size, size, dtype)
            wanted = torch.cat([whole.view(size, -1)[rank] for whole in wholes]) if numel else torch.empty(0).to(dtype)
            found = torch.zeros_like(wanted)
            before = group.account.total.bytes
            work = group.all_to_all(found, wholes[rank], site="exchange", wait=False)
            work.wait()
            work.wait()
            sent = group.account.total.bytes - before
            if not (torch.equal(found, wanted) and work.done()):
                wrong.append(f"{dtype} {numel}")
            if sent != wanted.nbytes * (size - 1) // size:
                wrong.append(f"{dtype} {numel}: {sent} bytes")
    assert group.journal.records()[-1].op == "all_to_all"
    group.close()
    return wrong


@every_world
@pytest.mark.parametrize("native", [False, True], ids=["direct", "native"])
def test_all_to_all_moves_every_dtype_and_size(world: int, native: bool, ranks: Ranks) -> None:
    assert ranks(exchanged, native, world=world) == [[]] * world


def test_all_to_all_in_a_group_of_one_copies() -> None:
    group, found = Collectives(name="alone"), torch.zeros(5)
    group.all_to_all(found, torch.arange(5.0), site="exchange")
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert (group.account.by_op["all_to_all"].calls, group.account.total.bytes) == (1, 0)


def test_all_to_all_of_mirror_images() -> None:
    """Each other rank sends what this rank keeps for itself."""
    group = FakeMesh(world=World(rank=1, size=3)).group("data")
    found = torch.empty(6)
    group.all_to_all(found, torch.arange(6.0), site="exchange")
    assert found.tolist() == [2, 3, 2, 3, 2, 3]
    assert group.account.total.bytes == 16


def test_wrong_exchanges_are_refused_before_anything_moves() -> None:
    group = FakeMesh(world=World(rank=0, size=2)).group("data")
    whole = torch.ones(8)
    for output, text in (
        (torch.ones(6), "8 x float32 and an output of 6 x float32"),
        (torch.ones(8, dtype=torch.float64), "make them equal"),
        (whole, "the same memory"),
    ):
        with pytest.raises(CommError, match=text):
            group.all_to_all(output, whole, site="x")
    with pytest.raises(CommError, match="found 3 elements in a group of 2 ranks; wanted 2 equal parts"):
        group.all_to_all(torch.ones(3), torch.ones(3), site="x")
    with pytest.raises(CommError, match="strides"):
        group.all_to_all(torch.ones(2, 2).t(), torch.ones(2, 2), site="x")
    assert group.journal.seq == 0


def late_peer() -> str:
    group = Collectives(dist.group.WORLD, name="data", deadline=1.5)
    if group.rank == 1:
        time.sleep(4)
    try:
        group.all_to_all(torch.empty(4), torch.ones(4), site="blocks.0 exchange")
        group.all_to_all(torch.empty(4), torch.ones(4), site="blocks.1 exchange")
    except CommError as error:
        return str(error)
    finally:
        group.close()
    return "came in time"


def test_a_hung_exchange_is_reported(ranks: Ranks) -> None:
    one, other = ranks(late_peer, deadline=30.0)
    assert one == other
    assert "all_to_all 'blocks.0 exchange' of group 'data' did not complete within 1.5 s" in one
    assert "rank 0 waits at 'blocks.0 exchange' (call 0: all_to_all, 4 x float32)" in one


def moved(operation: str) -> tuple[int, int]:
    """(bytes by the kernel's count, by the account)"""
    group = group_of()
    whole, shard = torch.ones(240_000 * group.size), torch.empty(240_000)
    group.barrier(site="warm")
    before, counted = settled_bytes(), group.account.total.bytes
    if operation == "all_to_all":
        group.all_to_all(torch.empty_like(whole), whole, site="wire")
    elif operation == "reduce_scatter":
        reduce_scatter_coded(group, shard, whole, codec=Int8(), site="wire")
    elif operation == "all_gather":
        all_gather_coded(group, whole, shard.fill_(2.0), codec=Int8(), site="wire")
    else:
        all_reduce_coded(group, whole, codec=Int8(), site="wire")
    counted = group.account.total.bytes - counted
    sent = settled_bytes() - before
    group.barrier(site="end")
    group.close()
    return sent, counted


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("operation", ["all_to_all", "reduce_scatter", "all_gather", "all_reduce"])
def test_bytes_on_the_wire(operation: str, world: int, ranks: Ranks) -> None:
    each = 4 * 240_000 if operation == "all_to_all" else Int8().packed_bytes(240_000)
    wanted = (world - 1) * each * (2 if operation == "all_reduce" else 1)
    for sent, counted in ranks(moved, operation, world=world):
        assert counted == wanted
        assert abs(sent - wanted) < 0.01 * wanted


def coded_by(codec: Codec, values: Tensor) -> Tensor:
    """What others see of these values."""
    packed = torch.empty(codec.packed_bytes(values.numel()), dtype=torch.uint8)
    found = torch.empty_like(values)
    codec.encode(values, packed)
    codec.decode(packed, found)
    return found


def expected_sum(codec: Codec, parts: list[Tensor], rank: int) -> Tensor:
    """The fp32 sum of what this rank sees: the others' parts through the codec, its own as it is."""
    total = torch.zeros(parts[0].numel())
    for other, part in enumerate(parts):
        total = total + (part.float() if other == rank else coded_by(codec, part.float()))
    return total


def scatter(group: Collectives, codec: Codec, numel: int, dtype: torch.dtype) -> bool:
    rank, size = group.rank, group.size
    wholes = numbers(numel * size, size, dtype)
    own = slice(rank * numel, (rank + 1) * numel)
    wanted = expected_sum(codec, [whole[own] for whole in wholes], rank)
    wide = torch.full((numel,), 7.0)
    reduce_scatter_coded(group, wide, wholes[rank].clone(), codec=codec, site="wide")
    in_place = wholes[rank].clone()
    work = reduce_scatter_coded(group, in_place[own], in_place, codec=codec, site="in place", wait=False)
    work.wait()
    work.wait()
    kept = torch.cat((in_place[: own.start], in_place[own.stop :]))
    given = torch.cat((wholes[rank][: own.start], wholes[rank][own.stop :]))
    return torch.equal(wide, wanted) and torch.equal(in_place[own], wanted.to(dtype)) and torch.equal(kept, given)


def reduce(group: Collectives, codec: Codec, numel: int, dtype: torch.dtype) -> tuple[bool, Tensor]:
    parts = numbers(numel, group.size, dtype)
    found = parts[group.rank].clone()
    work = all_reduce_coded(group, found, codec=codec, site="all", wait=False)
    work.wait()
    total = torch.stack([part.float() for part in parts]).sum(0)
    largest = sum(float(part.float().abs().max()) for part in parts) if numel else 0.0
    step = 0.0 if isinstance(codec, Plain) else 2**-6
    near = bool(((found.float() - total).abs() <= largest * (step + 2**-8 * (dtype != torch.float32)) + 1e-4).all())
    return work.done() and near, found


def gather(group: Collectives, codec: Codec, numel: int, dtype: torch.dtype) -> bool:
    rank, size = group.rank, group.size
    shards = numbers(numel, size, dtype)
    seen = shards if size == 1 else [coded_by(codec, shard) for shard in shards]
    found = torch.empty(numel * size, dtype=dtype)
    all_gather_coded(group, found, shards[rank], codec=codec, site="gather")
    again = torch.zeros(numel * size, dtype=dtype)
    again[rank * numel : (rank + 1) * numel] = shards[rank]
    all_gather_coded(group, again, again[rank * numel : (rank + 1) * numel], codec=codec, site="in place").wait()
    return torch.equal(found, torch.cat(seen)) and torch.equal(again, found)


def coded(native: bool) -> tuple[list[str], list[Tensor]]:
    """Cases that were wrong, and all sums that every rank has."""
    group, wrong, sums = group_of(native), [], []
    for codec in (Plain(), Odd(), Bf16(), Int8()):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for numel in SIZES:
                case = f"{codec.name} {dtype} {numel}"
                right, found = reduce(group, codec, numel, dtype)
                sums.append(found)
                wrong += [] if right else [f"all-reduce {case}"]
                wrong += [] if scatter(group, codec, numel, dtype) else [f"reduce-scatter {case}"]
                wrong += [] if gather(group, codec, numel, dtype) else [f"all-gather {case}"]
    group.close()
    return wrong, sums


@every_world
@pytest.mark.parametrize("native", [False, True], ids=["direct", "native"])
def test_coded_sums_and_gathers(world: int, native: bool, ranks: Ranks) -> None:
    found = ranks(coded, native, world=world)
    assert [wrong for wrong, _ in found] == [[]] * world
    for _, sums in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(sums, found[0][1], strict=True))


def exact() -> list[float]:
    """Differences between sums that travelled through a codec that loses nothing, and uncoded ones."""
    group, gaps = group_of(), []
    for numel in (1, 12, 3_000):
        whole = numbers(numel * group.size, group.size)[group.rank]
        ours, theirs = whole.clone(), whole.clone()
        all_reduce_coded(group, ours, codec=Plain(), site="a")
        group.all_reduce(theirs, site="b")
        shard, other = torch.empty(numel), torch.empty(numel)
        reduce_scatter_coded(group, shard, whole, codec=Plain(), site="c")
        group.reduce_scatter(other, whole, site="d")
        gaps += [float((ours - theirs).abs().max()), float((shard - other).abs().max())]
    group.close()
    return gaps


@every_world
def test_a_codec_that_loses_nothing_gives_the_uncoded_bits(world: int, ranks: Ranks) -> None:
    assert ranks(exact, world=world) == [[0.0] * 6] * world


def bad_numbers() -> list[bool]:
    group, found = group_of(), []
    for codec in (Bf16(), Int8()):
        for source in range(group.size):
            t = torch.ones(2000)
            if group.rank == source:
                t[700] = torch.inf
            all_reduce_coded(group, t, codec=codec, site="bad")
            found.append(bool((~t.isfinite()).nonzero().flatten().tolist() == [700]))
    group.close()
    return found


def test_what_is_not_finite_on_one_rank_is_not_finite_on_all(ranks: Ranks) -> None:
    assert ranks(bad_numbers, world=3) == [[True] * 6] * 3


def many() -> bool:
    """Scatters and gathers in any order of waiting; sums in one order."""
    group = group_of()
    rank, size = group.rank, group.size
    shards = [torch.empty(600) for _ in range(3)]
    wholes = [torch.empty(600 * size) for _ in range(3)]
    sums = [torch.full((1000,), float(i)) for i in range(3)]
    late = [all_reduce_coded(group, t, codec=Int8(), site=f"sum {i}", wait=False) for i, t in enumerate(sums)]
    works: list[Any] = []
    for i in range(3):
        whole = torch.full((600 * size,), float(i + 1))
        works.append(reduce_scatter_coded(group, shards[i], whole, codec=Int8(), site=f"s {i}", wait=False))
        mine = torch.full((600,), float(10 * rank + i))
        works.append(all_gather_coded(group, wholes[i], mine, codec=Bf16(), site=f"g {i}", wait=False))
    for i in range(len(works)) if rank == 0 else reversed(range(len(works))):
        works[i].wait()
    for work in late:
        work.wait()
    group.close()
    right = [torch.allclose(shards[i], torch.full((600,), float(size * (i + 1)))) for i in range(3)]
    right += [wholes[i].view(size, -1)[:, 0].tolist() == [10.0 * r + i for r in range(size)] for i in range(3)]
    right += [torch.allclose(sums[i], torch.full((1000,), float(size * i))) for i in range(3)]
    return all(right)


@pytest.mark.parametrize("world", [2, 3])
def test_many_coded_calls_are_under_way_together(world: int, ranks: Ranks) -> None:
    assert ranks(many, world=world, deadline=20.0) == [True] * world


def test_what_a_codec_does_not_take_is_refused() -> None:
    group = FakeMesh(world=World(rank=0, size=2)).group("data")
    with pytest.raises(CommError, match="'x': found torch.float64; a codec takes float32, bfloat16 or float16"):
        all_reduce_coded(group, torch.ones(4, dtype=torch.float64), codec=Int8(), site="x")
    with pytest.raises(CommError, match="strides"):
        all_reduce_coded(group, torch.ones(4, 4).t(), codec=Int8(), site="x")
    with pytest.raises(CommError, match="whole of 5 elements and a shard of 2.*pad the whole"):
        reduce_scatter_coded(group, torch.ones(2), torch.ones(5), codec=Int8(), site="x")
    with pytest.raises(CommError, match="whole of 5 elements and a shard of 2.*pad the whole"):
        all_gather_coded(group, torch.ones(5), torch.ones(2), codec=Int8(), site="x")
    assert group.journal.seq == 0
