"""Builds the driver of one stage: which bucket each parameter falls in, under which policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from dsx.engine.build import cut_buckets, replicated_policy
from dsx.errors import EngineError
from dsx.flat.driver import FlatDriver
from dsx.flat.policy import Policy
from dsx.flat.reducer import gradients_of
from dsx.mesh.mesh import Mesh
from dsx.optim.binding import OptimizerBinding
from dsx.planning.plan import Plan
from dsx.plugin import Family
from dsx_zero.config import ZeroConfig
from dsx_zero.gather import Gatherer
from dsx_zero.policy import Persistence, bucket_size, policy_for
from dsx_zero.units import units_of


class ShardedDriver(FlatDriver):
    """The one gradient path under a stage's policies."""

    stage: int = 0
    refuse_unused: bool = False

    def update(self, *, factor: float = 1.0) -> None:
        """One optimizer step; an EngineError and no step where a parameter has no gradient and each must have one."""
        if self.refuse_unused:
            arrived = {name for bucket in self.trainable for name in gradients_of(bucket).touched}
            missing = [name for bucket in self.trainable for name in bucket.params if name not in arrived]
            if missing:
                self.discard()
                raise EngineError(
                    f"parameters without a gradient on any rank in this update: {', '.join(missing)}; wanted one for "
                    "each, as zero_optimization.ignore_unused_parameters=false says: set it to true, or freeze them"
                )
        super().update(factor=factor)


def sharded_driver(
    plan: Plan, model: nn.Module, families: Sequence[Family], binding: OptimizerBinding, mesh: Mesh
) -> ShardedDriver:
    """The driver for ``zero_optimization.stage`` of this plan."""
    config = plan.config.section(ZeroConfig)
    numel = sum(param.numel() for param in model.parameters())
    base = replicated_policy(plan, bucket_numel=bucket_size(config, numel))
    policy = policy_for(config, base)
    units = units_of(model, config)
    whole = replace(policy, shard_parameters=False)
    persistent = Persistence.of(model, config).names if config.stage == 3 else frozenset()

    def policy_of(name: str, param: nn.Parameter) -> tuple[Policy, str] | None:
        if config.stage == 3 and name not in persistent:
            return replace(policy, bucket_numel=max(policy.bucket_numel, config.prefetch_bucket_size)), units[name]
        return (whole, "") if param.requires_grad else None

    buckets = cut_buckets(plan, model, families, binding, mesh=mesh, policy_of=policy_of)
    sharded = [bucket for bucket in buckets if bucket.policy.shard_parameters]
    gatherer = Gatherer(model, sharded, units=units, config=config) if sharded else None
    driver = ShardedDriver(model, buckets, binding=binding, mesh=mesh, residency=gatherer)
    driver.stage = config.stage
    driver.refuse_unused = not config.ignore_unused_parameters
    return driver
