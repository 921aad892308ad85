"""torch.distributed, started if the world has more than one process and nobody has started it yet."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from dsx.errors import LaunchError
from dsx.mesh.world import world_from_env
from dsx.plugin.types import World


def init_distributed(
    dist_backend: str | None = None,
    *,
    device_type: str = "cpu",
    timeout: timedelta | float = 1800.0,
    init_method: str | None = None,
    rank: int = -1,
    world_size: int = -1,
) -> World:
    """Start torch.distributed once, and say which process this is.

    ``dist_backend`` defaults to the one that serves ``device_type``. A process that stands alone needs none, unless
    ``init_method`` or a backend is given. An initialised torch.distributed is used as it is.
    Raises LaunchError where rank or size are missing, or the processes do not find each other.
    """
    world = world_from_env()
    if rank >= 0 and world_size > 0:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        local_size = max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), local_rank + 1)
        world = World(rank=rank, size=world_size, local_rank=local_rank, local_size=local_size)
    elif rank >= 0 or world_size > 0:
        raise LaunchError(f"found rank={rank} and world_size={world_size}; give both, or neither")
    if dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), world.local_rank, world.local_size)
    if world.size == 1 and init_method is None and dist_backend is None:
        return world
    limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    _start(world, dist_backend or backend_of(device_type), limit, init_method)
    if dist.get_backend() == "gloo":
        dist.barrier()  # a rank that ends at once must not close its connections while others still open theirs
    return world


def backend_of(device_type: str) -> str:
    """The torch.distributed backend that serves a type of device."""
    return dist.get_default_backend_for_device(torch.device(device_type))


def _start(world: World, backend: str, limit: timedelta, init_method: str | None) -> None:
    try:
        if init_method is None and "MASTER_ADDR" not in os.environ:
            if world.size > 1:
                raise LaunchError(
                    f"found a world of {world.size} processes and no MASTER_ADDR to meet at; start with 'dsx run', or "
                    "pass init_method='tcp://host:port'"
                )
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=limit)
        else:
            method = init_method or "env://"
            dist.init_process_group(backend, init_method=method, rank=world.rank, world_size=world.size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        place = init_method or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise LaunchError(
            f"rank {world.rank} of {world.size} did not meet the others at {place} by {backend}: {error}; see that all "
            "ranks have been started, reach this address, and that its port is free"
        ) from error
