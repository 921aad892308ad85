"""Bytes that a rank holds at rest: predicted by arithmetic, and counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsx.flat.bucket import Bucket
from dsx.flat.state import unbucketed
from dsx.plugin.roles import StateBytes

if TYPE_CHECKING:
    from dsx.flat.driver import FlatDriver


def predicted_bytes(driver: FlatDriver) -> StateBytes:
    """What the policies imply for this model, after a backward and before its update: no padding, no rounding."""
    parameters = gradients = optimizer = 0.0
    per_element = getattr(driver.updater, "state_bytes_per_element", 0.0)
    for bucket in driver.buckets:
        numel = sum(slot.numel for slot in bucket.layout.slots)
        owned = numel / bucket.layout.degree
        precision = bucket.precision
        parameters += precision.parameter.itemsize * (owned if bucket.policy.shard_parameters else numel)
        if not bucket.trainable:
            continue
        gradients += precision.accumulate.itemsize * (owned if bucket.policy.reduce_each else numel)
        optimizer += per_element * owned
        if precision.master != precision.parameter:
            optimizer += precision.master.itemsize * owned
    parameters += sum(param.numel() * param.element_size() for param in unbucketed(driver).values())
    return StateBytes(round(parameters), round(gradients), round(optimizer), _storage_bytes(driver.model.buffers()))


def counted_bytes(driver: FlatDriver) -> StateBytes:
    """Distinct storages that are alive now."""
    weights = [param.data for param in driver.model.parameters()]
    weights += [bucket.shard for bucket in driver.buckets]
    gradients: list[Tensor] = []
    optimizer: list[Tensor] = []
    for bucket in driver.buckets:
        optimizer += [] if _shares(bucket) else [bucket.master]
        if bucket.gradients is not None:
            gradients += bucket.gradients.tensors()
    if driver.updater is not None:
        for state in driver.optimizer.state.values():
            optimizer += [value for value in state.values() if isinstance(value, Tensor)]
    return StateBytes(
        _storage_bytes(weights),
        _storage_bytes(gradients),
        _storage_bytes(optimizer),
        _storage_bytes(driver.model.buffers()),
        kept=driver.reducer.buffers_kept.nbytes + driver.mesh.kept_bytes(),
    )


def _shares(bucket: Bucket) -> bool:
    return bucket.master.untyped_storage().data_ptr() == bucket.shard.untyped_storage().data_ptr()


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    found: dict[int, int] = {}
    for tensor in tensors:
        if tensor.device != torch.device("meta"):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())
