"""What the core refuses of a plan that claims cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsx.plugin.types import Problem

if TYPE_CHECKING:
    from dsx.planning.plan import Plan


def core_problems(plan: Plan) -> Iterator[Problem]:
    """Problems with the core's own keys in this world."""
    world = plan.world
    if plan.config.checkpoint.use_node_local_storage and world.local_size < world.size:
        yield Problem(
            "checkpoint.use_node_local_storage",
            f"found true with {world.size} ranks on several nodes: each node would keep a part of the checkpoint, "
            "which then loads under no other number of ranks",
            "checkpoint.use_node_local_storage=false and a folder that every node sees, or one node",
        )
