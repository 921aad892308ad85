"""Gradients and weights by name, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dsx.comm.collectives import Collectives
from dsx.errors import EngineError
from dsx.flat.bucket import Bucket
from dsx.flat.layout import Span
from dsx.flat.reducer import gradients_of

_AT_ONCE = 1 << 20
_PRIME = 1_000_003


def _span(bucket: Bucket, name: str) -> Span | None:
    return next((span for span in bucket.spans if span.name == name), None)


def local_gradient(bucket: Bucket, name: str) -> Tensor | None:
    """This rank's part of the reduced sum, a flat view; ``None`` where it owns nothing or nobody touched it."""
    span = _span(bucket, name)
    return None if span is None else gradients_of(bucket).of(span)


def whole_gradient(bucket: Bucket, name: str, *, divisor: float) -> Tensor | None:
    """The gradient in the parameter's shape, fp32, on each rank."""
    if name not in gradients_of(bucket).touched:
        return None
    slot = bucket.layout.by_name[name]
    whole = torch.zeros(slot.numel, dtype=torch.float32, device=bucket.device)
    part, span = local_gradient(bucket, name), _span(bucket, name)
    if part is not None and span is not None:
        whole[span.start : span.stop] = part
    bucket.shard_group.all_reduce(whole, site=f"gradient of {name}")
    return whole.div_(divisor).view(slot.shape)


def set_whole_gradient(bucket: Bucket, name: str, value: Tensor, *, divisor: float) -> None:
    """Put a gradient in place of the reduced one."""
    slot = bucket.layout.by_name[name]
    if tuple(value.shape) != slot.shape:
        raise EngineError(f"gradient for {name!r} has shape {tuple(value.shape)}, the parameter has {slot.shape}")
    gradients = gradients_of(bucket)
    if gradients.owned is None:
        gradients.launch()
        gradients.finish()
    gradients.touched.add(name)
    span = _span(bucket, name)
    part = None if span is None else gradients.of(span)
    if part is not None and span is not None:
        part.copy_(value.reshape(-1)[span.start : span.stop].to(part.device, torch.float32) * divisor)


@contextmanager
def watched(
    params: Mapping[str, nn.Parameter], buckets: Sequence[Bucket], *, writer: int | None, world: Collectives
) -> Iterator[None]:
    """Carry the writer's edits of these parameters to all ranks; without a writer, refuse edits, on every rank alike.

    ``buckets``: those that hold some of the parameters; their masters follow.
    """
    if writer is not None and not 0 <= writer < world.size:
        raise EngineError(f"writer rank is {writer}, wanted one of 0..{world.size - 1}")
    before = {name: _fingerprint(param) for name, param in params.items()} if writer is None else {}
    yield
    if writer is not None:
        for name, param in params.items():
            world.broadcast(param.data, source=writer, site=f"edited {name}")
        for bucket in buckets:
            bucket.refresh_master()
        return
    edited = [name for name, param in params.items() if _fingerprint(param) != before[name]]
    everyone = sorted({name for found in world.exchange_objects(edited, site="edits in gathered()") for name in found})
    if everyone:
        raise EngineError(
            f"parameters edited inside gathered() without a writer: {everyone}. The edit reached no "
            "other rank. Pass writer=RANK (the rank whose values all ranks take), or do not write"
        )


def _fingerprint(param: Tensor) -> int:
    """Changes when any element does, or two trade places: a sum of the bits, weighted by place."""
    flat = param.detach().reshape(-1)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    mark = 0
    for part in bits.split(_AT_ONCE):
        places = 2 * torch.arange(part.numel(), device=part.device) + 1  # also of no element
        mark = mark * _PRIME + int((part.to(torch.int64) * places * _PRIME).sum())
    return mark
