"""How ranks are started on several machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import RUNNER
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Named as after ``dsx run --runner``."""
    yield Component(RUNNER, "ssh", load="dsx.launch.runners:SshRunner", summary="an agent a machine, over ssh")
    yield Component(RUNNER, "slurm", load="dsx.launch.runners:SlurmRunner", summary="a task a rank, by srun")
    yield Component(
        RUNNER, "mpi", load="dsx.launch.runners:MpiRunner", summary="a process a rank, by Open MPI's mpirun"
    )
