"""What an engine puts in a checkpoint, and how it goes on from one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.errors import CheckpointError
from dsx.optim.schedule_driver import LRSchedule
from dsx.plugin.kinds import STORE
from dsx.plugin.types import CheckpointPart
from dsx.registry.building import building
from dsx.registry.registry import Registry

if TYPE_CHECKING:
    from dsx.engine.engine import Engine
    from dsx.plugin.roles import Store

LOGGER = logging.getLogger("dsx")
COUNTERS = ("global_steps", "global_samples", "skipped_steps")


def parts_of(engine: Engine, *, loading: bool = False) -> list[CheckpointPart]:
    """Model, optimizer, counters, scaler, schedule, loader, and what plugins add; names are unique."""
    parts = list(engine.driver.parts(loading=loading))
    parts.append(CheckpointPart("progress", 1, lambda: _progress(engine), lambda state: _load_progress(engine, state)))
    parts.append(CheckpointPart("scaler", 1, engine.scaler.state, engine.scaler.load, optimizer=True))
    if engine.schedule is not None:
        parts.append(_schedule_part(engine.schedule))
    loader = engine.training_dataloader
    if loader is not None and hasattr(loader, "state_dict"):
        parts.append(CheckpointPart("loader", 1, loader.state_dict, lambda state: loader.load_state_dict(dict(state))))
    parts.extend(tagged.value for tagged in engine.plugins.checkpoint_parts(engine))
    names = [part.name for part in parts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CheckpointError(f"checkpoint parts {twice} are given twice: a plugin must name its part after itself")
    return parts


def _schedule_part(schedule: LRSchedule) -> CheckpointPart:
    def check(stored: Mapping[str, Any]) -> None:
        saved, own = (len(state.get("base_lrs", state.get("groups", ()))) for state in (stored, schedule.state_dict()))
        if saved != own:
            raise CheckpointError(
                f"the checkpoint's schedule is for {saved} parameter groups, this one for {own}. Nothing was changed. "
                "Make the same groups, or load with load_lr_scheduler_states=False"
            )

    return CheckpointPart(
        "schedule", 1, schedule.state_dict, lambda state: schedule.load_state_dict(dict(state)), check=check
    )


def _progress(engine: Engine) -> dict[str, Any]:
    """Counters as of the last whole update: the gradients of a begun one are in no checkpoint."""
    begun = engine.micro_steps % engine.gradient_accumulation_steps()
    state: dict[str, Any] = {name: getattr(engine, name) for name in COUNTERS}
    state["global_samples"] -= begun * engine.plan.batch.micro * engine.plan.batch.replicas
    state["micro_steps"] = engine.micro_steps - begun
    return state


def _load_progress(engine: Engine, state: Mapping[str, Any]) -> None:
    for name in COUNTERS:
        setattr(engine, name, int(state[name]))
    engine.micro_steps = int(state["micro_steps"])


def save(
    engine: Engine,
    root: Path,
    *,
    tag: str | None,
    client_state: Mapping[str, Any],
    latest: bool,
    frozen: bool,
) -> Path:
    """Write one checkpoint; every rank calls it."""
    from dsx.checkpoint.save import save as write

    name = tag if tag is not None else f"global_step{engine.global_steps}"
    begun, whole = engine.micro_steps % engine.gradient_accumulation_steps(), engine.gradient_accumulation_steps()
    if begun and engine.plan.world.rank == 0:
        LOGGER.warning(
            "checkpoint %r is saved after %d of %d micro-batches: their gradients are not in it", name, begun, whole
        )
    for observer in engine.observers:
        try:
            observer.before_save(engine, root / name)
        except Exception as error:
            engine.blame(observer, error)
            raise
    parts = parts_of(engine)
    if not frozen:
        parts = [without_frozen(engine, part) if part.name == "model" else part for part in parts]
    path = write(
        root,
        tag=name,
        parts=parts,
        group=engine.mesh.world_group,
        store=store_of(engine, root),
        client_state=client_state,
        latest=latest,
        meta={"world": engine.plan.world.size, "stage": engine.zero_optimization_stage(), "step": engine.global_steps},
    )
    for observer in engine.observers:
        try:
            observer.after_save(engine, path)
        except Exception as error:
            engine.blame(observer, error)
            raise
    return path


def store_of(engine: Engine, root: Path) -> Store:
    """The store that ``checkpoint.store`` names, over this root."""
    registry, name = Registry(engine.plugins), engine.config.checkpoint.store
    make = registry.get(STORE, name)
    with building(registry, STORE, name):
        return make(root)


def without_frozen(engine: Engine, part: CheckpointPart) -> CheckpointPart:
    """The model part without parameters that do not train."""
    frozen = {name for name, param in engine.module.named_parameters() if not param.requires_grad}

    def state() -> dict[str, Any]:
        full = part.state()
        return {**full, "weights": {name: value for name, value in full["weights"].items() if name not in frozen}}

    return CheckpointPart(part.name, part.version, state, part.load)


def load(
    engine: Engine,
    root: Path,
    *,
    tag: str | None,
    strict: bool,
    optimizer: bool,
    schedule: bool,
    progress: bool,
) -> tuple[Path, dict[str, Any]]:
    """Read one checkpoint into the engine; every rank calls it."""
    from dsx.checkpoint.load import load as read

    engine.zero_grad()
    wanted = []
    for part in parts_of(engine, loading=True):
        if part.optimizer and not optimizer:
            continue
        if part.name == "schedule" and not schedule:
            continue
        if part.name in ("progress", "loader") and not progress:
            continue
        wanted.append(part)
    found = read(
        root, tag=tag, parts=wanted, group=engine.mesh.world_group, store=store_of(engine, root), strict=strict
    )
    if not progress:
        engine.micro_steps = 0
    if engine.schedule is not None:
        engine.schedule.refresh()
    return root / found.tag, dict(found.client_state)
