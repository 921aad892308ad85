"""A driver, owner of the resource ``driver``: how gradients become an update. This one counts votes.

Turned on by ``"majority_vote": {"enabled": true}``; with SGD it is signSGD with majority vote (arXiv:1810.05291).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from dsx.engine.build import cut_buckets, replicated_policy
from dsx.flat.driver import FlatDriver
from dsx.flat.reducer import gradients_of
from dsx.plugin import Claim, Driver, Family, PluginSpec, Section, hookimpl, needs, sets

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.flat.bucket import Bucket
    from dsx.mesh.mesh import Mesh
    from dsx.optim.binding import OptimizerBinding
    from dsx.planning.plan import Plan


class VoteSection(Section):
    """``majority_vote``: each micro-batch of each rank votes on the direction of each weight."""

    enabled: bool = False
    """Count votes in place of adding gradients."""


SPEC = PluginSpec(
    name="example-driver", api=1, summary="signSGD with majority vote", sections={"majority_vote": VoteSection}
)


class MajorityVote(FlatDriver):
    """The core's gradient path over signs. What people see as gradient is the mean vote; the update takes its sign."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], *, binding: OptimizerBinding, mesh: Mesh) -> None:
        super().__init__(model, buckets, binding=binding, mesh=mesh)
        self.voters = [param.register_hook(torch.sign) for param in model.parameters() if param.requires_grad]

    def update(self, *, factor: float = 1.0) -> None:
        """A step of one length for each weight with a majority; ties stay."""
        for bucket in self.trainable:
            votes = gradients_of(bucket).owned
            if votes is not None:
                votes.sign_().mul_(self.divisor)
        super().update(factor=factor)

    def close(self, *, whole: bool = True) -> None:
        """Take the voters off the model too."""
        for voter in self.voters:
            voter.remove()
        super().close(whole=whole)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_claims(config: DsxConfig) -> Iterator[Claim]:
    """It makes the updates, and cannot see an overflow."""
    if config.section(VoteSection).enabled:
        yield sets("driver", "majority_vote", why="majority_vote.enabled=true")
        yield needs("dtype", "fp32", "bf16", why="the sign of an infinite gradient is 1", nearest="bf16.enabled=true")


@hookimpl
def dsx_make_driver(
    plan: Plan, model: nn.Module, families: Sequence[Family], make_inner: OptimizerBinding, mesh: Mesh
) -> Driver:
    """The driver, over buckets as plain data parallelism cuts them."""
    policy = replicated_policy(plan)
    buckets = cut_buckets(
        plan,
        model,
        families,
        make_inner,
        mesh=mesh,
        policy_of=lambda name, param: (policy, "") if param.requires_grad else None,
    )
    return MajorityVote(model, buckets, binding=make_inner, mesh=mesh)
