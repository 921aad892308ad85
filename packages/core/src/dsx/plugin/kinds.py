"""The kinds of component that the core knows. A plugin may define more: a kind is a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsx.plugin.roles import Accelerator, Codec, Monitor, Partitioner, Runner, Store
from dsx.plugin.types import Kind

OPTIMIZER: Kind[Callable[..., Any]] = Kind("optimizer", "updates weights; built with (param_groups, **params)")
SCHEDULE: Kind[Callable[..., Any]] = Kind("schedule", "learning rate as a function of the update index")
ACCELERATOR: Kind[type[Accelerator]] = Kind("accelerator", "a kind of device and its backend")
STORE: Kind[type[Store]] = Kind("store", "where checkpoint files are kept")
MONITOR: Kind[type[Monitor]] = Kind("monitor", "where metrics are written")
RUNNER: Kind[type[Runner]] = Kind("runner", "how ranks are started on several machines")
ACTIVATION_CHECKPOINT: Kind[Callable[..., Any]] = Kind("activation_checkpoint", "recomputes activations in backward")
CODEC: Kind[type[Codec]] = Kind("codec", "numbers in fewer bytes, for the wire")
PARTITIONER: Kind[Partitioner] = Kind("partitioner", "cuts a list of layers into contiguous parts")

KINDS = (
    OPTIMIZER,
    SCHEDULE,
    ACCELERATOR,
    STORE,
    MONITOR,
    RUNNER,
    ACTIVATION_CHECKPOINT,
    CODEC,
    PARTITIONER,
)
