"""Collectives over encoded numbers: sums and gathers whose tensors travel in a codec's bytes.

What comes from other ranks has been encoded, what a rank keeps for itself has not. Sums are made in fp32, in the order
of the ranks. Where every rank gets a result, every rank decodes it from the same bytes, so that all hold the same bits.
On the wire each part takes the codec's ``packed_bytes``, no more. In a group of one nothing travels, so nothing is
encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsx.comm.collectives import Collectives, Work
from dsx.errors import CommError

if TYPE_CHECKING:
    from dsx.plugin.roles import Codec

CODED = (torch.float32, torch.bfloat16, torch.float16)
"""What a codec takes."""


class CodedWork:
    """A coded collective under way; its tensors belong to it until ``wait``, which may be called more than once."""

    def __init__(self, work: Work, then: Callable[[], None], *, leaving: Tensor | None = None) -> None:
        self._work = work
        self._then: Callable[[], None] | None = then
        self._leaving = leaving
        """What is on its way, kept alive until it has arrived."""

    def wait(self) -> None:
        """Return when the result is decoded into its tensor. Raises CommError past the deadline or on a lost rank."""
        then, self._then = self._then, None
        if then is not None:
            self._work.wait()
            self._leaving = None
            then()

    def done(self) -> bool:
        """Whether the result is there; only who has waited knows."""
        return self._then is None


def reduce_scatter_coded(
    group: Collectives, output: Tensor, input: Tensor, *, codec: Codec, site: str, wait: bool = True
) -> CodedWork | Work:
    """Sum ``input`` over the ranks; ``output`` gets this rank's of ``group.size`` equal parts.

    ``output`` may have another dtype than ``input``, and may be this rank's range of it. Each rank sends the encoded
    parts of the others: ``(size - 1) * packed_bytes(part)`` bytes.
    """
    _check(site, output, input)
    if group.size == 1:
        return group.reduce_scatter(output, input, site=site, wait=wait)
    if input.numel() != output.numel() * group.size:
        raise CommError(
            f"'{site}': found a whole of {input.numel()} elements and a shard of {output.numel()} in a group of "
            f"{group.size} ranks; wanted {group.size} equal shards: pad the whole"
        )
    parts = list(input.view(group.size, -1).unbind(0))
    work, arrived, leaving = _exchange(group, parts, codec=codec, site=site)

    def finish() -> None:
        total = _sum(group, arrived, parts[group.rank], codec=codec, into=output.view(-1))
        if total.data_ptr() != output.data_ptr():
            output.view(-1).copy_(total)

    return _begun(CodedWork(work, finish, leaving=leaving), wait)


def all_reduce_coded(group: Collectives, t: Tensor, *, codec: Codec, site: str, wait: bool = True) -> CodedWork | Work:
    """Sum ``t`` over the ranks, in place; every rank gets the same bits.

    Each rank sums one part, encodes the sum anew and gives it to the others: together
    ``2 * (size - 1) * packed_bytes(part)`` bytes sent, with parts of ``numel / size`` elements, rounded up. The second
    half begins when the first is waited for: the ranks wait at the same place among the calls of the group.
    """
    _check(site, t)
    if group.size == 1:
        return group.all_reduce(t, site=site, wait=wait)
    parts = _parts(t.view(-1), group.size)
    work, arrived, leaving = _exchange(group, parts, codec=codec, site=site)

    def finish() -> None:
        own = parts[group.rank]
        total = _sum(group, arrived, own, codec=codec, into=torch.empty_like(own, dtype=torch.float32))
        _gather(group, parts, total, codec=codec, site=f"{site} (sums)")()

    return _begun(CodedWork(work, finish, leaving=leaving), wait)


def all_gather_coded(
    group: Collectives, output: Tensor, shard: Tensor, *, codec: Codec, site: str, wait: bool = True
) -> CodedWork | Work:
    """Make whole: ``output`` gets the decoded shards in the order of the ranks, this rank's too.

    ``shard`` may be its own range of ``output``, and may have another dtype. Each rank sends
    ``(size - 1) * packed_bytes(shard)`` bytes.
    """
    _check(site, output, shard)
    if output.numel() != shard.numel() * group.size:
        raise CommError(
            f"'{site}': found a whole of {output.numel()} elements and a shard of {shard.numel()} in a group of "
            f"{group.size} ranks; wanted {group.size} equal shards: pad the whole"
        )
    if group.size == 1:
        return group.all_gather(output, shard.to(output.dtype), site=site, wait=wait)
    places = list(output.view(group.size, -1).unbind(0))
    work, decode = _start_gather(group, places, shard.view(-1), codec=codec, site=site)
    return _begun(CodedWork(work, decode), wait)


def _begun(work: CodedWork, wait: bool) -> CodedWork:
    if wait:
        work.wait()
    return work


def _check(site: str, *tensors: Tensor) -> None:
    for t in tensors:
        if t.dtype not in CODED:
            raise CommError(f"'{site}': found {t.dtype}; a codec takes float32, bfloat16 or float16")
        if not t.is_contiguous():
            raise CommError(f"'{site}': found a tensor with strides {t.stride()}; pass a contiguous one")


def _parts(flat: Tensor, size: int) -> list[Tensor]:
    """One part for each rank, equally long but for the last ones, which may be shorter or empty."""
    step = -(-flat.numel() // size)
    return [flat[min(rank * step, flat.numel()) : min((rank + 1) * step, flat.numel())] for rank in range(size)]


def _room(parts: Sequence[Tensor], codec: Codec) -> int:
    """Bytes that any of the parts takes: every part travels in as many, so that ranks need not tell."""
    return max(codec.packed_bytes(numel) for numel in {part.numel() for part in parts})


def _encode(codec: Codec, values: Tensor, room: Tensor) -> None:
    if values.numel():
        codec.encode(values, room[: codec.packed_bytes(values.numel())])


def _decode(codec: Codec, room: Tensor, values: Tensor) -> None:
    if values.numel():
        codec.decode(room[: codec.packed_bytes(values.numel())], values)


def _exchange(
    group: Collectives, parts: Sequence[Tensor], *, codec: Codec, site: str
) -> tuple[Work, list[Tensor], Tensor]:
    """Start: part i, encoded, to rank i; where the others' encoded parts for this rank arrive; and what leaves."""
    leaving = torch.empty(group.size, _room(parts, codec), dtype=torch.uint8, device=parts[0].device)
    arriving = torch.empty_like(leaving)
    for rank, part in enumerate(parts):
        if rank != group.rank:
            _encode(codec, part, leaving[rank])
    work = group.all_to_all(arriving, leaving, site=site, wait=False)
    return work, list(arriving.unbind(0)), leaving


def _sum(group: Collectives, arrived: Sequence[Tensor], own: Tensor, *, codec: Codec, into: Tensor) -> Tensor:
    """The fp32 sum of all ranks' parts for this one: in ``into`` if that can hold it, else in memory of its own."""
    free = into.dtype == torch.float32 and into.data_ptr() != own.data_ptr()
    total = into if free else torch.empty_like(own, dtype=torch.float32)
    part = torch.empty_like(total)
    for rank, room in enumerate(arrived):
        if rank != group.rank:
            _decode(codec, room, part)
        other = own if rank == group.rank else part
        if rank:
            total.add_(other)
        else:
            total.copy_(other)
    return total


def _start_gather(
    group: Collectives, places: Sequence[Tensor], own: Tensor, *, codec: Codec, site: str
) -> tuple[Work, Callable[[], None]]:
    """Start the gather of encoded parts; what is left to do when they are there."""
    rooms = torch.empty(group.size, _room(places, codec), dtype=torch.uint8, device=own.device)
    _encode(codec, own, rooms[group.rank])

    def decode() -> None:
        for room, place in zip(rooms, places, strict=True):
            _decode(codec, room, place)

    return group.all_gather(rooms, rooms[group.rank], site=site, wait=False), decode


def _gather(
    group: Collectives, places: Sequence[Tensor], own: Tensor, *, codec: Codec, site: str
) -> Callable[[], None]:
    work, decode = _start_gather(group, places, own, codec=codec, site=site)
    work.wait()
    return decode
