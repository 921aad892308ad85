"""The values that hooks return: what a plugin says of itself, its components, its claims, its axes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    import torch

    from dsx.config.section import Section

T = TypeVar("T")

API_VERSION = 1
"""The contract between the core and its plugins. A plugin with another number is refused with both numbers."""


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """What a plugin says of itself, before anything else is asked of it."""

    name: str
    api: int
    summary: str
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    """Configuration sections that it owns: key in the file -> its model."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A family of interchangeable components; names are unique within it."""

    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class Component(Generic[T]):
    """One named implementation of a kind, imported when it is first asked for."""

    kind: Kind[T]
    name: str
    load: str | Callable[[], T]
    """``"module:attribute"``, or a function that gives the object."""
    aliases: tuple[str, ...] = ()
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """How well a kernel variant or accelerator suits this machine: 0 cannot run here, 1 the torch reference."""

    value: int
    why: str


@dataclass(frozen=True, slots=True)
class Form:
    """How an operation on flat tensors is called: names of its tensors in order, and settings to try."""

    states: tuple[str, ...]
    """Tensors after ``shard`` and ``grad``; kept in fp32. Those named ``…sq…`` are not negative."""
    settings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One variant of an operation. The best positive score wins, unless the user forces another.

    The operation is one of the core's, or the plugin's own: then one variant is named ``torch``, has score 1, runs for
    any device and dtype, and is the reference that the others are compared with.
    """

    operation: str
    variant: str
    load: str | Callable[[], Callable[..., Any]]
    score: Callable[[], Score]
    supports: Callable[[torch.Tensor], bool] | None = None
    """Says whether a tensor of this device and dtype can be passed; ``None`` means any."""
    form: str | Callable[[], Form] | None = None
    """On the reference of a plugin's own operation: how ``dsx.testing.check_variants`` calls it, loaded as ``load``."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One plugin's word on one resource: it sets it to a state, or needs it in one of some states."""

    resource: str
    states: tuple[str, ...]
    verb: Literal["sets", "needs"]
    why: str
    nearest: str = ""
    """The nearest setting under which the need would hold, shown to the user."""


def sets(resource: str, state: str, *, why: str) -> Claim:
    """A claim that the resource ends in this state. At most one plugin may set a resource."""
    return Claim(resource, (state,), "sets", why)


def needs(resource: str, *states: str, why: str, nearest: str = "") -> Claim:
    """A claim that the final state of the resource is one of these."""
    return Claim(resource, states, "needs", why, nearest)


RESOURCES: Mapping[str, str] = {
    "param": "whole",
    "grad": "whole",
    "optim": "whole",
    "dtype": "fp32",
    "loop": "accumulate",
    "driver": "replicated",
    "inference": "none",
    "graph": "eager",
}
"""Each resource that plugins may claim, with the state it has when nobody sets it."""


@dataclass(frozen=True, slots=True)
class World:
    """Which process this is among how many. A value: asking it starts nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What planning may know of model and machine, as plain numbers."""

    parameters: int | None = None
    """Elements of all parameters, where the model is known."""
    largest_parameter: int | None = None
    device: str = "cpu"
    native_bf16: bool = False
    """Whether this processor multiplies bf16 without converting."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value that replaces one ``"auto"``, with the reason that ``dsx config explain`` prints."""

    key: str
    """Path of the key, such as ``zero_optimization.reduce_bucket_size``."""
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of the device mesh. Degree ``None`` takes what the other axes leave."""

    name: str
    degree: int | None
    inside: str | None = None
    """The axis that this one divides, such as ``expert`` inside ``data``."""
    why: str = ""


class Phase(enum.IntEnum):
    """When a model pass runs; within a phase passes must not depend on each other."""

    REWRITE = 10
    SPLIT = 20
    PLACE = 30
    SHARD = 40
    COMPILE = 50


@dataclass(frozen=True, slots=True)
class ModelPass:
    """A change to the model on its way into the engine."""

    name: str
    phase: Phase
    apply: Callable[..., torch.nn.Module]
    """``apply(model, plan, *components)`` gives the model, the same or another."""
    uses: tuple[tuple[Kind[Any], str], ...] = ()
    """Components by (kind, name) that ``apply`` is given, in this order; an unknown name stops before training."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that cannot run, which claims cannot say."""

    where: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Family:
    """Parameters with one rule of reduction and sharding; each parameter belongs to exactly one family.

    ``split_over``: axes on which ranks hold different parts. ``reduce_over``: axes on which ranks hold the same part
    and compute different contributions. ``shard_over``: where the state may be cut, a subset of ``reduce_over``.
    """

    name: str
    members: Callable[[str, torch.nn.Parameter], bool]
    """Says of each (name, parameter) whether it belongs here."""
    split_over: tuple[str, ...] = ()
    reduce_over: tuple[str, ...] = ("data",)
    shard_over: tuple[str, ...] = ("data",)


@dataclass(frozen=True, slots=True)
class Layer:
    """What a partitioner may know of one layer of a model."""

    name: str
    kind: str
    """The name of its class."""
    parameters: int
    """Elements of its parameters."""
    cost: float | None = None
    """Measured seconds of a forward and backward, where somebody measured."""


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """One named piece of an engine's state: how to give it, how to take it back.

    ``state()`` gives a nested dictionary of plain data, tensors and ``dsx.checkpoint.Boxes``; ``load(state)`` takes
    the same structure filled from the file. Tensors in it are filled in place.
    """

    name: str
    version: int
    state: Callable[[], dict[str, Any]]
    load: Callable[[Mapping[str, Any]], None]
    optimizer: bool = False
    """Left out when only weights are wanted."""
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Looks at the file's plain data before anything is changed, alike on every rank; raises CheckpointError."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of ``dsx``: a Typer application or a plain function."""

    name: str
    load: str
    summary: str


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One line of ``dsx report``."""

    topic: str
    name: str
    value: str
    good: bool = True
    note: str = ""


Rows = Iterable[ReportRow]
