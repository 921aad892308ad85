"""A driver's state by name: whole weights, checkpoint parts, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dsx.checkpoint.boxes import Alias, Boxes
from dsx.errors import CheckpointError
from dsx.flat.bucket import Bucket
from dsx.flat.layout import Span
from dsx.optim.piece import Piece
from dsx.plugin.types import CheckpointPart

if TYPE_CHECKING:
    from dsx.flat.driver import FlatDriver


def aliases_of(model: nn.Module) -> dict[str, str]:
    """Second names of tied parameters, each with the first."""
    first: dict[int, str] = {}
    aliases = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if id(param) in first:
            aliases[name] = first[id(param)]
        else:
            first[id(param)] = name
    return aliases


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that belong in a state dict, by name."""
    found = {}
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def unbucketed(driver: FlatDriver) -> dict[str, nn.Parameter]:
    """Parameters that no bucket holds: frozen ones that rest whole, and those that are not floating point."""
    held = {name for bucket in driver.buckets for name in bucket.params}
    return {name: param for name, param in driver.model.named_parameters() if name not in held}


def full_state_dict(driver: FlatDriver) -> dict[str, Tensor]:
    """Whole weights by name on the host, floating point as fp32, from the masters; a collective."""
    found: dict[str, Tensor] = {}
    for bucket in driver.buckets:
        whole = bucket.whole_master()
        for name, view in bucket.views(whole).items():
            found[name] = _host(view)
    for name, param in unbucketed(driver).items():
        found[name] = _host(param.data)
    ordered = {name: found[name] for name, _ in driver.model.named_parameters()}
    ordered.update({alias: ordered[name] for alias, name in driver.aliases.items()})
    ordered.update(
        {name: buffer.detach().to("cpu", copy=True) for name, buffer in persistent_buffers(driver.model).items()}
    )
    return ordered


def _host(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.dtype.is_floating_point else tensor.dtype
    return tensor.detach().to("cpu", dtype, copy=True)


# Checkpoint parts --------------------------------------------------------------------------------------------------


def parts(driver: FlatDriver, *, loading: bool) -> list[CheckpointPart]:
    """The model, and the optimizer where there is one."""
    found = [CheckpointPart("model", 1, lambda: model_state(driver), lambda state: load_model(driver, state))]
    if driver.updater is not None:
        found.append(
            CheckpointPart(
                "optimizer",
                1,
                lambda: optimizer_state(driver, loading=loading),
                lambda state: load_optimizer(driver, state),
                optimizer=True,
                check=lambda stored: check_groups(driver, stored),
            )
        )
    return found


def model_state(driver: FlatDriver) -> dict[str, Any]:
    """Masters, frozen weights and buffers; tied names as aliases."""
    weights: dict[str, Any] = {}
    for bucket in driver.buckets:
        spans = {span.name: span for span in bucket.spans}
        for slot in bucket.layout.slots:
            weights[slot.name] = _boxes(slot.name, slot.shape, bucket.master, spans.get(slot.name))
    for name, param in unbucketed(driver).items():
        weights[name] = Boxes.whole(name, param.data)
    weights.update({alias: Alias(f"weights/{name}") for alias, name in driver.aliases.items()})
    buffers = {name: Boxes.whole(name, buffer) for name, buffer in persistent_buffers(driver.model).items()}
    return {"weights": weights, "buffers": buffers}


def _boxes(name: str, shape: tuple[int, ...], shard: Tensor, span: Span | None) -> Boxes:
    pieces = () if span is None else ((span.start, shard[span.offset : span.offset + span.numel]),)
    return Boxes(name, shape, shard.dtype, pieces)


def load_model(driver: FlatDriver, state: Mapping[str, Any]) -> None:
    """Masters were filled in place: derive the low-precision weights and bring the shards together."""
    for bucket in driver.buckets:
        if bucket.master.data_ptr() != bucket.shard.data_ptr():
            bucket.shard.copy_(bucket.master)
        bucket.publish()
    driver.reducer.clear()


def owned_pieces(driver: FlatDriver) -> Iterator[tuple[Bucket, Span, Piece]]:
    """Every piece with its bucket and span."""
    for bucket in driver.trainable:
        for span, piece in zip(bucket.spans, bucket.pieces, strict=True):
            yield bucket, span, piece


def optimizer_state(driver: FlatDriver, *, loading: bool) -> dict[str, Any]:
    """Moments as boxes under ``moments/<key>/<name>``; counters and scalars as plain data by name.

    Pieces that were never updated are described by fresh state, which stays only if a load is to fill it.
    """
    assert driver.updater is not None
    states = driver.optimizer.state
    fresh = [piece for piece in driver.pieces if not states.get(piece.master)]
    driver.updater.init_state(driver.pieces)
    keys, scalars, refused = _kept_by_name(driver, states)
    everywhere = driver.world.exchange_objects((keys, scalars, refused), site="names of optimizer states")
    for other_keys, other_scalars, other_refused in everywhere:
        keys.update(other_keys)
        scalars.update(other_scalars)
        refused = refused or other_refused
    if refused:
        raise CheckpointError(refused)
    moments: dict[str, dict[str, Any]] = {}
    held = {span.name: (span, piece) for _, span, piece in owned_pieces(driver)}
    for bucket in driver.trainable:
        for slot in bucket.layout.slots:
            for key, (dtype, own_shape) in keys.get(slot.name, {}).items():
                pieces: tuple[tuple[int, Tensor], ...] = ()
                if slot.name in held:
                    span, piece = held[slot.name]
                    start = span.start if own_shape is None else 0
                    pieces = ((start, states[piece.master][key].view(-1)),)
                shape = slot.shape if own_shape is None else own_shape
                moments.setdefault(key, {})[slot.name] = Boxes(f"{key} of {slot.name}", shape, dtype, pieces)
    for piece in () if loading else fresh:
        states.pop(piece.master, None)
    return {
        "moments": moments,
        "steps": dict(driver.steps),
        "scalars": scalars,
        "groups": [_plain(group) for group in driver.optimizer.param_groups],
    }


Kept = dict[str, dict[str, tuple[torch.dtype, tuple[int, ...] | None]]]
"""Parameter -> state -> its dtype, and its shape where that is not the parameter's, as in a factored second moment."""


def _kept_by_name(driver: FlatDriver, states: Mapping[Any, Any]) -> tuple[Kept, dict[str, dict[str, Any]], str]:
    """(tensors, plain values) of this rank's optimizer states by name, and why they cannot be written, if so."""
    keys: Kept = {}
    scalars: dict[str, dict[str, Any]] = {}
    refused = ""
    for bucket, span, piece in owned_pieces(driver):
        whole = math.prod(bucket.layout.by_name[span.name].shape) == span.numel
        for key, value in states.get(piece.master, {}).items():
            if key == "step":
                continue
            if isinstance(value, Tensor) and value.shape == piece.master.shape:
                keys.setdefault(span.name, {})[key] = (value.dtype, None)
            elif isinstance(value, Tensor) and value.dim():
                keys.setdefault(span.name, {})[key] = (value.dtype, tuple(value.shape))
                if not whole:
                    refused = (
                        f"the optimizer keeps {key!r} of shape {tuple(value.shape)} for a part of {span.name!r}, which "
                        "cannot be put together with those of other ranks\n    what to do: give its class "
                        'ownership = "parameter", so that it is called with whole parameters'
                    )
            else:
                scalars.setdefault(span.name, {})[key] = value.item() if isinstance(value, Tensor) else value
    return keys, scalars, refused


def check_groups(driver: FlatDriver, stored: Mapping[str, Any]) -> None:
    """Refuse settings of other parameter groups than this optimizer has."""
    saved, own = len(stored["groups"]), len(driver.optimizer.param_groups)
    if saved != own:
        raise CheckpointError(
            f"the checkpoint's optimizer has {saved} parameter groups, this one {own}. Nothing was changed. Make the "
            "same groups, or load with load_optimizer_states=False"
        )


def load_optimizer(driver: FlatDriver, state: Mapping[str, Any]) -> None:
    """Moments were filled in place; counters, scalars and group settings are put back."""
    driver.steps.update({name: int(step) for name, step in state["steps"].items()})
    states = driver.optimizer.state
    for _, span, piece in owned_pieces(driver):
        own = states.get(piece.master)
        if not own:
            continue
        if "step" in own:
            step = driver.steps[span.name]
            own["step"] = torch.full_like(own["step"], step) if isinstance(own["step"], Tensor) else step
        for key, value in state["scalars"].get(span.name, {}).items():
            own[key] = torch.full_like(own[key], value) if isinstance(own.get(key), Tensor) else value
    for group, saved in zip(driver.optimizer.param_groups, state["groups"], strict=True):
        group.update(saved)


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    keep = (bool, int, float, str, type(None))
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in group.items()
        if key not in ("params", "param_names")
        and (isinstance(value, keep) or (isinstance(value, tuple | list) and all(isinstance(v, keep) for v in value)))
    }
