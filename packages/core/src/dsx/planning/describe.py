"""A plan as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsx.planning.plan import Plan
    from dsx.plugin.manager import PluginInfo


def describe(plan: Plan) -> str:
    """What will run, and why: ranks, axes, batch, precision, resources, passes, resolved values, plugins."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"ranks: {plan.world.size}"
    yield "mesh: " + " × ".join(
        f"{axis.name} {axis.degree}" + (f" (inside {axis.inside})" if axis.inside else "") for axis in plan.axes
    )
    batch = plan.batch
    yield (
        f"batch: {batch.train} samples an update = micro {batch.micro} × accumulation {batch.accumulation} "
        f"× data replicas {batch.replicas}"
    )
    yield plan.precision.describe()
    yield "resources:"
    why = {(item.claim.resource, item.plugin): item.claim.why for item in plan.claims if item.claim.verb == "sets"}
    for resource, state in plan.states.items():
        owner = plan.owners.get(resource)
        yield f"  {resource}: {state}" + (f", set by {owner!r} ({why[resource, owner]})" if owner else "")
    if plan.passes:
        yield "model passes: " + ", ".join(f"{item.name} ({item.phase.name})" for item in plan.passes)
    if plan.resolved:
        yield 'resolved from "auto":'
        yield from (f"  {item.key} = {item.value!r}: {item.why}" for item in plan.resolved)
    yield "plugins: " + ", ".join(
        " ".join(
            part for part in (info.name, info.version, "" if info.state == "active" else f"[{info.state}]") if part
        )
        for info in plan.plugins
    )
    yield f"digest: {plan.digest()}"


def _plugin(info: PluginInfo) -> str:
    state = "" if info.state == "active" else f"[{info.state}]"
    return " ".join(part for part in (info.name, info.version, state) if part)
