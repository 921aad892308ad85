"""A configuration section with a key that may be ``"auto"``, and a check of the whole plan.

Turned on by ``"memory_budget": {"gigabytes": 16}``: a plan whose state does not fit is refused before it is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dsx.plugin import AUTO, Auto, AutoType, Facts, PluginSpec, Problem, Resolved, Section, hookimpl

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.planning.plan import Plan

BYTES = 16
"""Of each parameter with Adam: weights, gradients, and two moments with or without masters, in any precision."""


class BudgetSection(Section):
    """``memory_budget``: what weights, gradients and optimizer may take on each rank."""

    gigabytes: float | None = Field(default=None, gt=0)
    """The most that they may take. None: anything."""
    needed: Auto[float] = AUTO
    """What they take when nothing is sharded. auto: 16 bytes for each parameter of the model."""


SPEC = PluginSpec(
    name="example-section", api=1, summary="a budget of memory", sections={"memory_budget": BudgetSection}
)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_resolve(config: DsxConfig, facts: Facts) -> Iterator[Resolved]:
    """A value for the key at auto, with the reason that ``dsx config explain`` shows."""
    if isinstance(config.section(BudgetSection).needed, AutoType):
        parameters = facts.parameters or 0
        yield Resolved("memory_budget.needed", parameters * BYTES / 1e9, f"{BYTES} bytes for each of {parameters:,}")


@hookimpl
def dsx_check_plan(plan: Plan) -> Iterator[Problem]:
    """Refuse what does not fit; a plan that shards anything is left to its owner."""
    section = plan.config.section(BudgetSection)
    assert not isinstance(section.needed, AutoType), "resolved before the plan is checked"
    whole = all(plan.states[name] == "whole" for name in ("param", "grad", "optim"))
    if whole and section.gigabytes is not None and section.needed > section.gigabytes:
        found = f"found {section.gigabytes:g}, and the state takes {section.needed:.3g} on each rank"
        yield Problem("memory_budget.gigabytes", found, f"{section.needed:.3g} or more, or shard the state")
