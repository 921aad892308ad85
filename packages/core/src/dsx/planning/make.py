"""Makes a plan by named steps. Pure: no tensor, no process group, no clock; the same values give the same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dsx.config.auto import AutoType
from dsx.config.load import load_config
from dsx.config.root import DsxConfig
from dsx.errors import PlanError
from dsx.planning.automatic import CORE, resolve
from dsx.planning.axes import DATA, solve_axes
from dsx.planning.batch import solve_batch
from dsx.planning.claims import settle
from dsx.planning.plan import Claimed, Plan
from dsx.plugin.manager import PluginManager, Tagged, plugin_manager
from dsx.plugin.types import Claim, Facts, MeshAxis, ModelPass, World, sets


def make_plan(
    config: Mapping[str, Any] | str | Path | DsxConfig | None,
    *,
    world: World,
    facts: Facts = Facts(),  # noqa: B008  (a frozen value)
    plugins: PluginManager | None = None,
) -> Plan:
    """The plan of this configuration among so many ranks. Raises ConfigError or PlanError, with all problems at once.

    config: a mapping, a path to JSON, JSON text, or a loaded configuration. facts: what is known of model and machine.
    plugins: those installed, unless given.
    """
    plugins = plugins if plugins is not None else plugin_manager()
    loaded = load_config(config, plugins=plugins)
    axes = solve_axes(plugins.mesh_axes(loaded, world), world_size=world.size, provider=plugins.provider)
    replicas = _replicas(loaded, axes)
    batch, batch_reasons = solve_batch(
        loaded.train_batch_size,
        loaded.train_micro_batch_size_per_gpu,
        loaded.gradient_accumulation_steps,
        replicas=replicas,
    )
    decided, resolved = resolve(loaded, batch=batch_reasons, world=world, facts=facts, plugins=plugins)

    from dsx.precision.policy import policy_from  # brings torch's dtypes, which reading a configuration does not need

    precision = policy_from(decided, native_bf16=facts.native_bf16)
    claims = _claims(decided, world, plugins)
    settlement = settle(claims, provider=plugins.provider)
    plan = Plan(
        config=decided,
        world=world,
        axes=axes,
        batch=batch,
        precision=precision,
        states=MappingProxyType(settlement.states),
        owners=MappingProxyType(settlement.owners),
        claims=claims,
        resolved=resolved,
        passes=_passes(plugins.passes(decided), plugins),
        plugins=plugins.info(),
    )
    _check(plan, settlement.problems, plugins)
    return plan


def _replicas(config: DsxConfig, axes: Sequence[MeshAxis]) -> int:
    degree = next(axis.degree for axis in axes if axis.name == DATA)
    assert degree is not None, "solve_axes leaves no degree open"
    if config.data_parallel_size is not None and config.data_parallel_size != degree:
        raise PlanError(
            f"data_parallel_size: found {config.data_parallel_size}, wanted {degree}, which the other mesh axes leave\n"
            f"    what to do: set it to {degree}, or leave it out"
        )
    return degree


def _claims(config: DsxConfig, world: World, plugins: PluginManager) -> tuple[Claimed, ...]:
    own = [Claimed(CORE, claim) for claim in _core_claims(config)]
    return (*own, *(Claimed(item.plugin, item.value) for item in plugins.claims(config, world)))


def _core_claims(config: DsxConfig) -> list[Claim]:
    for name in ("fp16", "bf16"):
        enabled = getattr(config, name).enabled
        assert not isinstance(enabled, AutoType), "auto is resolved before claims are made"
        if enabled:
            return [sets("dtype", name, why=f"{name}.enabled=true")]
    return []


def _passes(found: Sequence[Tagged[ModelPass]], plugins: PluginManager) -> tuple[ModelPass, ...]:
    by_name: dict[str, list[str]] = {}
    for item in found:
        by_name.setdefault(item.value.name, []).append(plugins.provider(item.plugin))
    doubled = [f"{name!r} by {' and '.join(who)}" for name, who in by_name.items() if len(who) > 1]
    if doubled:
        raise PlanError(
            f"model passes have the same name: {', '.join(doubled)}; wanted one of each name\n"
            f"    what to do: turn one of them off, or block its plugin with DSX_PLUGINS_BLOCK"
        )
    ordered = sorted(found, key=lambda item: (item.value.phase, item.plugin, item.value.name))
    return tuple(item.value for item in ordered)


def _check(plan: Plan, problems: Sequence[str], plugins: PluginManager) -> None:
    found = list(problems)
    for item in plugins.check_plan(plan):
        found.append(f"{item.value.where}: {item.value.what}\n    nearest legal: {item.value.remedy}")
    if found:
        listed = "".join(f"\n  - {text}" for text in found)
        raise PlanError(f"this configuration cannot run:{listed}")
