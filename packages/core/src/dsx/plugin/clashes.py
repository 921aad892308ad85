"""Names that two plugins claim: of a plugin, a section, a component, a kernel variant, a command."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsx.config.root import DsxConfig
from dsx.config.section import keys_of
from dsx.errors import PluginError
from dsx.plugin.calling import Member, Tagged
from dsx.plugin.naming import REMEDY
from dsx.plugin.types import Command, Component, Kernel

CORE = "the core itself"
"""The owner of names that no plugin may take."""

OWN = "dsx-core"
"""The distribution that keeps its names where a clash is shown rather than raised."""


@dataclass(frozen=True, slots=True, eq=False)
class Clash:
    """One name with two owners."""

    what: str
    """``optimizer 'adam' is offered by``."""
    providers: tuple[str, ...]
    members: tuple[Member, ...]
    """Those among the owners that are plugins."""
    offers: tuple[Any, ...] = ()
    """The components, kernels or commands of this name."""

    def __str__(self) -> str:
        by = " and ".join(self.providers) if len(set(self.providers)) > 1 else f"{self.providers[0]}, twice"
        return f"{self.what} {by}"

    @property
    def remedy(self) -> str:
        """What a user can do."""
        if len({id(member) for member in self.members}) == 1 and len(set(self.providers)) == 1:
            return self.members[0].who.remedy
        blocks = [member.found.block for member in self.losers]
        if len(set(blocks)) < len(blocks):
            blocks = [member.found.distribution for member in self.losers]
        ways = " or ".join(f"DSX_PLUGINS_BLOCK={name}" for name in dict.fromkeys(blocks) if name)
        return f"uninstall one of the plugins, or block it: {ways}" if ways else "give only one of the plugins"

    @property
    def losers(self) -> tuple[Member, ...]:
        """The plugins that do without the name where a clash is shown rather than raised: all but the core's own."""
        return tuple(member for member in self.members if member.found.distribution != OWN)


def raise_clashes(clashes: Sequence[Clash], *, what: str) -> None:
    """One PluginError for all of them; nothing where there is none."""
    if clashes:
        remedies = "; ".join(dict.fromkeys(clash.remedy for clash in clashes))
        raise PluginError(f"{what} clash: {'; '.join(map(str, clashes))}{REMEDY}{remedies}")


def member_clashes(members: Sequence[Member]) -> tuple[Clash, ...]:
    """Plugins of one name, and sections with two owners or of a name that the core has."""
    ordered = sorted(members, key=lambda member: (member.spec.name, member.found.provider))
    names: dict[str, list[Member]] = {}
    sections: dict[str, list[Member]] = {}
    for member in ordered:
        names.setdefault(member.spec.name, []).append(member)
        for key in member.spec.sections:
            sections.setdefault(key, []).append(member)
    taken = [
        Clash(f"the name {name!r} is taken by", tuple(item.found.provider for item in who), tuple(who))
        for name, who in names.items()
        if len(who) > 1
    ]
    core = keys_of(DsxConfig)
    return (
        *taken,
        *(
            Clash(
                f"section {key!r} is owned by",
                (*((CORE,) if key in core else ()), *(item.who.provider for item in who)),
                tuple(who),
            )
            for key, who in sections.items()
            if len(who) > 1 or key in core
        ),
    )


def offer_clashes(
    offered: Iterable[Tagged[Component[Any] | Kernel]], members: Mapping[str, Member]
) -> tuple[Clash, ...]:
    """Components and kernel variants with two owners. Names count in any case, and aliases are names."""
    claimed: dict[str, list[Tagged[Any]]] = {}
    for item in offered:
        for what in _titles(item.value):
            claimed.setdefault(what, []).append(item)
    return _clashing(claimed, members)


def command_clashes(
    offered: Iterable[Tagged[Command]], members: Mapping[str, Member], *, core: Iterable[str] = ()
) -> tuple[Clash, ...]:
    """Commands with two owners, or of a name that the core has."""
    claimed: dict[str, list[Tagged[Any]]] = {}
    for item in offered:
        claimed.setdefault(f"command {item.value.name!r} is offered by", []).append(item)
    reserved = {f"command {name!r} is offered by" for name in core}
    return _clashing(claimed, members, reserved=reserved)


def _clashing(
    claimed: Mapping[str, Sequence[Tagged[Any]]], members: Mapping[str, Member], *, reserved: Container[str] = ()
) -> tuple[Clash, ...]:
    found: list[Clash] = []
    for what, items in claimed.items():
        if len(items) > 1 or what in reserved:
            owners = [members[item.plugin] for item in items]
            providers = (*(("the core",) if what in reserved else ()), *(owner.who.provider for owner in owners))
            unique = {id(owner): owner for owner in owners}
            found.append(Clash(what, providers, tuple(unique.values()), tuple(item.value for item in items)))
    return tuple(found)


def _titles(offer: Component[Any] | Kernel) -> Iterable[str]:
    if isinstance(offer, Kernel):
        return (f"kernel {offer.operation}={offer.variant} is offered by",)
    names = dict.fromkeys(known.lower() for known in (offer.name, *offer.aliases))
    return (f"{offer.kind.name} {name!r} is offered by" for name in names)
