"""Idle plugins: twenty that are installed and have nothing to say, and what a process with them spends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import dsx
from benchmarks.processes import ROOT
from dsx.plugin.discovery import given
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.testing import write_distribution

COUNT = 20
MODEL = str(ROOT / "examples" / "quickstart")
SEQUENCES, WIDTH, LAYERS, LENGTH = 4, 128, 4, 64
TOKENS = SEQUENCES * LENGTH
SOURCE = '''
"""A plugin that is idle: it has a section, an optimizer and every hook of planning and building, and nothing to do."""

from dsx.plugin import OPTIMIZER, Component, PluginSpec, Section, hookimpl


class Settings(Section):
    """What nobody switches on."""

    enabled: bool = False
    """Whether it does anything."""


@hookimpl
def dsx_plugin():
    return PluginSpec(name="{name}", api=1, summary="idle", sections={{"{name}": Settings}})


@hookimpl
def dsx_components():
    yield Component(OPTIMIZER, "{name}", load="{name}.missing:Optimizer")


@hookimpl
def dsx_resolve(config, world, facts):
    return ()


@hookimpl
def dsx_mesh_axes(config, world):
    return ()


@hookimpl
def dsx_claims(config, world):
    return ()


@hookimpl
def dsx_passes(config):
    return ()


@hookimpl
def dsx_check_plan(plan):
    return ()


@hookimpl
def dsx_param_families(plan, model):
    return ()


@hookimpl
def dsx_observers(plan, engine):
    return ()


@hookimpl
def dsx_checkpoint_parts(engine):
    return ()


@hookimpl
def dsx_report():
    return ()


@hookimpl
def dsx_teardown(engine):
    return None
'''


def write_plugins(folder: Path, *, count: int = COUNT) -> None:
    """Make so many distributions below this folder, found through it on PYTHONPATH."""
    for name in (f"idle_{number}" for number in range(count)):
        modules = {f"{name}/__init__.py": "", f"{name}/plugin.py": SOURCE.format(name=name)}
        write_distribution(folder, name, modules=modules, entry_points={name: f"{name}.plugin"})


def config() -> dict[str, Any]:
    """A training by the core alone."""
    return {
        "train_micro_batch_size_per_gpu": SEQUENCES,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "log_level": "warning",
    }


def idle_found() -> int:
    """How many idle plugins this process finds."""
    return sum(name.startswith("idle_") for name in plugin_manager().names)


def installed(folder: str) -> None:
    """Let this process find what is installed in this folder, as PYTHONPATH would; nothing where it is empty."""
    sys.path[:0] = [folder, MODEL] if folder else [MODEL]


def alone() -> None:
    """Make this rank a process of its own, that trains with nobody."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")


def make_step() -> Callable[[], None]:
    """A training step of a small GPT, ready to be called again and again."""
    from model import GPT, Shape

    torch.manual_seed(0)
    engine, *_ = dsx.initialize(model=GPT(Shape(LAYERS, WIDTH, 4, LENGTH)), config=config())
    data = torch.randint(256, (SEQUENCES, LENGTH + 1))

    def step() -> None:
        engine.backward(engine(data[:, :-1], data[:, 1:]))
        engine.step()

    return step


def calls(step: Callable[[], None]) -> int:
    """How many functions of Python and C one step calls."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def train(folders: Sequence[str], turns: Sequence[str], core: int, blocks: int, steps: int) -> dict[str, Any]:
    """Train with what is installed in this rank's folder, in turn with the other rank: a block here, a block there.

    turns: each rank's pipe, from which it reads that it may go on; the other writes that when its block is done. core:
    where both run, because a core that others use too is slower, and two that wait in turn keep to one each. Gives the
    wall and processor seconds of each block, the calls of one more step, and how many plugins were idle.
    """
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {core})
    alone()
    installed(folders[rank])
    step = make_step()
    for _ in range(steps):
        step()
    walls, processor = [], []
    with open(turns[rank], "r+b", buffering=0) as mine, open(turns[1 - rank], "r+b", buffering=0) as other:
        for _ in range(blocks):
            mine.read(1)
            wall, used = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            walls.append(time.perf_counter() - wall)
            processor.append(time.process_time() - used)
            other.write(b"x")
    return {"idle": idle_found(), "walls": walls, "processor": processor, "calls": calls(step)}


def start(folder: str, what: str) -> dict[str, Any]:
    """Wall and processor seconds of finding the plugins (``manager``) or of building an engine (``initialize``).

    What both import of dsx and torch is imported before, by an engine that has the core's own plugin and no other.
    """
    alone()
    installed(folder)
    model = torch.nn.Linear(8, 8)
    core = PluginManager([given("dsx.builtin.plugin")])
    dsx.initialize(model=model, config=config(), plugins=core)[0].close()
    wall, used = time.perf_counter(), time.process_time()
    if what == "manager":
        plugin_manager()
    else:
        dsx.initialize(model=model, config=config())[0].close()
    took = {"wall": time.perf_counter() - wall, "processor": time.process_time() - used}
    return {**took, "idle": idle_found()}
