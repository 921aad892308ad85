"""The plan: all that is decided before a tensor or a process group exists. A frozen value, equal on every rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsx.planning.batch import Batch
from dsx.planning.same import DIGEST, present
from dsx.plugin.types import Claim, MeshAxis, ModelPass, Resolved, World

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.plugin.manager import PluginInfo
    from dsx.precision.policy import PrecisionPolicy


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim with the name of the plugin that made it."""

    plugin: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run. Everything but ``world.rank`` and ``world.local_rank`` is the same on each rank."""

    config: DsxConfig
    """With every ``"auto"`` replaced."""
    world: World
    axes: tuple[MeshAxis, ...]
    """Outermost first, each with its degree; an axis with ``inside`` divides that one."""
    batch: Batch
    precision: PrecisionPolicy
    states: Mapping[str, str]
    """Resource -> its final state."""
    owners: Mapping[str, str]
    """Resource -> the plugin that set it; a resource that nobody set is missing."""
    claims: tuple[Claimed, ...]
    resolved: tuple[Resolved, ...]
    """What took the place of each ``"auto"``, with reasons."""
    passes: tuple[ModelPass, ...]
    """In the order in which they run."""
    plugins: tuple[PluginInfo, ...]

    def degree(self, axis: str) -> int:
        """How many ranks lie along an axis; 1 for an axis that this plan does not have."""
        for known in self.axes:
            if known.name == axis:
                assert known.degree is not None, f"axis {axis} left planning without a degree"
                return known.degree
        return 1

    def describe(self) -> str:
        """The plan as text for people, a few dozen lines at most."""
        from dsx.planning.describe import describe

        return describe(self)

    def parts_of_digest(self) -> dict[str, str]:
        """Name of each part of the plan -> a hash of it, so that two ranks can name what differs."""
        parts: dict[str, Any] = {
            "world size": self.world.size,
            "mesh axes": [(axis.name, axis.degree, axis.inside) for axis in self.axes],
            "batch": [self.batch.train, self.batch.micro, self.batch.accumulation, self.batch.replicas],
            "precision": self.precision.describe(),
            "resources": sorted((name, state, self.owners.get(name)) for name, state in self.states.items()),
            "model passes": [(item.name, int(item.phase)) for item in self.passes],
            DIGEST: sorted((item.name, *item.kind) for item in present(self.plugins) if item.state == "active"),
        }
        dump = self.config.model_dump()
        parts |= {f"config {key}": dump[key] for key in sorted(dump)}
        return {name: _hash(value) for name, value in parts.items()}

    def digest(self) -> str:
        """One hash over all parts, in hexadecimal; equal on ranks that will do the same."""
        return _hash(sorted(self.parts_of_digest().items()))


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> str:
    """Text for what JSON has no form for. Functions and classes by name: their repr may hold an address."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name is not None else repr(value)
