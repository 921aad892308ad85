"""ZeRO as a plugin: what it claims, and what it builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsx.plugin import AutoType, Claim, Driver, Facts, Family, Observer, PluginSpec, Problem, Resolved, hookimpl, sets
from dsx_zero.config import ZeroConfig

if TYPE_CHECKING:
    from torch import nn

    from dsx.config.root import DsxConfig
    from dsx.mesh.mesh import Mesh
    from dsx.optim.binding import OptimizerBinding
    from dsx.planning.plan import Plan

SPEC = PluginSpec(
    name="zero",
    api=1,
    summary="shards optimizer states, gradients and parameters",
    sections={"zero_optimization": ZeroConfig},
)
SHARDED_FROM = {"optim": 1, "grad": 2, "param": 3}


@hookimpl
def dsx_plugin() -> PluginSpec:
    return SPEC


@hookimpl
def dsx_resolve(config: DsxConfig, facts: Facts) -> Iterator[Resolved]:
    from dsx_zero.policy import bucket_reason, bucket_size

    section = config.section(ZeroConfig)
    if not isinstance(section.reduce_bucket_size, AutoType):
        return
    size = bucket_size(section, facts.parameters)
    yield Resolved("zero_optimization.reduce_bucket_size", size, bucket_reason(size, facts.parameters))


@hookimpl
def dsx_claims(config: DsxConfig) -> Iterator[Claim]:
    stage = config.section(ZeroConfig).stage
    for resource, first in SHARDED_FROM.items():
        if stage >= first:
            yield sets(resource, "sharded", why=f"zero_optimization.stage={stage}")
    if stage:
        yield sets("driver", "sharded", why=f"zero_optimization.stage={stage} reduces and updates by shard")


@hookimpl
def dsx_check_plan(plan: Plan) -> Iterator[Problem]:
    from dsx_zero.policy import unsupported

    for key, value in unsupported(plan.config.section(ZeroConfig)):
        yield Problem(f"zero_optimization.{key}", f"{value!r} is not in this version of dsx-zero", "leave the key out")


@hookimpl
def dsx_observers(plan: Plan) -> Iterator[Observer]:
    if plan.config.section(ZeroConfig).enable_sanity_checks:
        from dsx_zero.sanity import SanityObserver

        yield SanityObserver()


@hookimpl
def dsx_make_driver(
    plan: Plan, model: nn.Module, families: Sequence[Family], make_inner: OptimizerBinding, mesh: Mesh
) -> Driver:
    from dsx_zero.driver import sharded_driver

    return sharded_driver(plan, model, families, make_inner, mesh)
