"""Meters that every engine is held to alike: processor time, resident memory, bytes of live tensors."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterable
from pathlib import Path

import torch


def processor_seconds() -> float:
    """Processor time of this process so far, user and system, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_rss() -> int:
    """The most memory that this process has held, in bytes; unlike ``getrusage``'s, not what its parent once held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind these tensors."""
    sizes = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device.type != "meta" and local.layout == torch.strided:
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    sizes.pop(0, None)
    return sum(sizes.values())


def live_tensor_bytes() -> int:
    """Bytes of the distinct storages of every tensor that Python can reach, gradients included."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return storage_bytes([*found, *(tensor.grad for tensor in found if tensor.is_leaf and tensor.grad is not None)])


def loopback_bytes() -> int:
    """Bytes that this machine has sent over its loopback interface so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("this machine has no loopback interface called lo")
