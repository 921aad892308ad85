"""Which process this is among how many, from what its starter left in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dsx.errors import LaunchError
from dsx.plugin.types import World

STARTERS: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": tuple(f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
"""Variables for (rank, size, local rank, local size), by who sets them; the first with rank and size set counts."""


def world_from_env(environment: Mapping[str, str] | None = None) -> World:
    """This process's place. Without any starter's variables: alone. Raises LaunchError on values that make no sense."""
    env = os.environ if environment is None else environment
    for starter, names in STARTERS.items():
        if names[0] in env and names[1] in env:
            return _read(env, starter, names)
    if env.get("WORLD_SIZE", "1") != "1" or env.get("RANK", "0") != "0":
        raise LaunchError(
            f"found RANK={env.get('RANK', 'unset')} and WORLD_SIZE={env.get('WORLD_SIZE', 'unset')}; set both, or "
            "start the script with 'dsx run'"
        )
    return World()


def _read(env: Mapping[str, str], starter: str, names: tuple[str, ...]) -> World:
    rank, size = (_number(env, name) for name in names[:2])
    local_rank = _number(env, names[2]) if names[2] in env else 0
    local_size = _local_size(env, names[3], local_rank, size)
    if not (0 <= rank < size and 0 <= local_rank < local_size):
        raise LaunchError(
            f"{starter} gave {names[0]}={rank}, {names[1]}={size}, local rank {local_rank} of {local_size}; ranks "
            "count from 0 and are below their size: start the script anew with 'dsx run'"
        )
    return World(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def _local_size(env: Mapping[str, str], name: str, local_rank: int, size: int) -> int:
    """Ranks on this machine. SLURM writes ``4(x2),3`` when machines differ: only a plain number is taken."""
    text = env.get(name, "").partition("(")[0]
    return int(text) if text.isdigit() else min(size, local_rank + 1)


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise LaunchError(f"found {name}={env[name]!r}; wanted a whole number") from None
