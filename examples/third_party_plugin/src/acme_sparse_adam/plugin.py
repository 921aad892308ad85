"""What this package does to a training: everything that dsx asks of it, each answer a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dsx.plugin import OPTIMIZER, Claim, Component, Kernel, Observer, PluginSpec, Problem, Resolved, hookimpl

from acme_sparse_adam import NAME, OPERATION
from acme_sparse_adam.config import SparseAdamSection, claims, problems, report_interval
from acme_sparse_adam.kernels import choice

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.planning.plan import Plan

SPEC = PluginSpec(
    name=NAME,
    api=1,
    summary="Adam that leaves alone what has no gradient",
    sections={NAME: SparseAdamSection},
)


@hookimpl
def dsx_plugin() -> PluginSpec:
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any] | Kernel]:
    # Texts, not objects: what is named here is imported when a configuration asks for it.
    yield Component(OPTIMIZER, NAME, load="acme_sparse_adam.optimizer:SparseAdam", summary=SPEC.summary)
    masked = "acme_sparse_adam.kernels.masked:masked_step"
    yield Kernel(OPERATION, "torch", load=masked, score=choice.reference_score, form=choice.form)
    gathered = "acme_sparse_adam.kernels.gathered:gathered_step"
    yield Kernel(OPERATION, "gathered", load=gathered, score=choice.gathered_score, supports=choice.on_host)


@hookimpl
def dsx_resolve(config: DsxConfig) -> Iterable[Resolved]:
    return report_interval(config)


@hookimpl
def dsx_claims(config: DsxConfig) -> Iterable[Claim]:
    return claims(config)


@hookimpl
def dsx_check_plan(plan: Plan) -> Iterable[Problem]:
    return problems(plan)


@hookimpl
def dsx_observers(plan: Plan) -> Iterator[Observer]:
    section = plan.config.section(SparseAdamSection)
    if isinstance(section.report_every, int) and section.report_every > 0:
        from acme_sparse_adam.observer import TouchedObserver

        yield TouchedObserver(section.report_every, section.parameters)
