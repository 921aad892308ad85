"""Tells ranks apart that have planned different things: which plugin is where, in which version, and what else."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginInfo

DIGEST = "plugins"
"""The part of a plan's digest that plugins make."""


@dataclass(frozen=True, slots=True)
class Present:
    """A plugin on one rank, as ranks tell each other."""

    name: str
    distribution: str
    version: str
    state: str
    trouble: str
    module: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """What must be equal. A module without a version is named by its folder, which may differ between machines."""
        return (self.distribution if self.version else "", self.version)

    @property
    def source(self) -> str:
        """``acme-dsx 1.0``."""
        return " ".join(part for part in (self.distribution, self.version) if part)


def present(infos: Sequence[PluginInfo]) -> tuple[Present, ...]:
    """What a rank tells the others of its plugins."""
    return tuple(
        Present(
            info.name,
            info.distribution,
            info.version,
            info.state,
            info.trouble if info.state != "active" else "",
            info.module,
        )
        for info in infos
    )


def differing_parts(everyone: Sequence[Mapping[str, str]]) -> dict[str, list[int]]:
    """Part of the digest -> the ranks on which it is not as on rank 0."""
    names = sorted({name for parts in everyone for name in parts})
    first = everyone[0]
    ranks = {
        name: [rank for rank, parts in enumerate(everyone) if parts.get(name) != first.get(name)] for name in names
    }
    return {name: who for name, who in ranks.items() if who}


def difference(parts: Mapping[str, Sequence[int]], plugins: Sequence[Sequence[Present]]) -> str:
    """The message: what differs, on which ranks, what to do. Plugins come first, as the rest may follow from them."""
    about = {name: _of_plugin(name, plugins) for name in _active_names(plugins)}
    lines = [line for line in about.values() if line]
    remedies = []
    if lines:
        blocks = ",".join(dict.fromkeys(_block(name, plugins) for name, line in about.items() if line))
        remedies.append(
            "install the same plugins in the same versions for every rank (`dsx plugins` lists those of one machine), "
            f"or block what is not everywhere: DSX_PLUGINS_BLOCK={blocks}"
        )
    others = {name: ranks for name, ranks in parts.items() if name != DIGEST}
    if others:
        who = sorted({rank for ranks in others.values() for rank in ranks})
        have = "has" if len(who) == 1 else "have"
        also = ", which may follow from the plugins" if lines else ""
        lines.append(f"{_ranks(who)} {have} planned something else than rank 0: {', '.join(others)} differ{also}")
        remedies.append("give every rank the same configuration")
    listed = "".join(f"\n  - {line}" for line in lines)
    return f"ranks have planned different things:{listed}\n    what to do: {'; '.join(remedies)}"


def _active_names(plugins: Sequence[Sequence[Present]]) -> list[str]:
    return sorted({item.name for rank in plugins for item in rank if item.state == "active"})


def _block(name: str, plugins: Sequence[Sequence[Present]]) -> str:
    """By what a plugin is blocked: its distribution; a module without one by its own name."""
    item = next(item for rank in plugins for item in rank if item.name == name and item.state == "active")
    return item.distribution if item.version else item.module or name


def _of_plugin(name: str, plugins: Sequence[Sequence[Present]]) -> str:
    """One line for a plugin that is not the same on every rank; nothing for one that is."""
    active = [next((item for item in items if item.name == name and item.state == "active"), None) for items in plugins]
    sources = {item.kind: item.source for item in reversed(active) if item is not None}
    having: dict[tuple[str, str], list[int]] = {}
    lacking: dict[str, list[int]] = {}
    for rank, (mine, items) in enumerate(zip(active, plugins, strict=True)):
        if mine is not None:
            having.setdefault(mine.kind, []).append(rank)
        else:
            lacking.setdefault(_why(name, items, {kind[0] for kind in sources}), []).append(rank)
    if len(having) == 1 and not lacking:
        return ""
    said = [f"({sources[kind]}) is on {_ranks(ranks)}" for kind, ranks in having.items()]
    said += [f"{why} on {_ranks(ranks)}" for why, ranks in lacking.items()]
    return f"plugin {name!r} {', '.join(said)}"


def _why(name: str, items: Sequence[Present], distributions: Container[str]) -> str:
    """Why a rank does not have a plugin: it is not found there, blocked, or broken, and then by what cause."""
    for item in items:
        if item.state != "active" and (item.name == name or (item.distribution and item.distribution in distributions)):
            return f"{item.state} ({item.source}: {item.trouble})"
    return "missing"


def _ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
