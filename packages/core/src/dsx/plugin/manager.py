"""The plugins of a process: found, checked against the hooks, and called: typed, tagged, with every failure named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import pluggy
import torch

from dsx.config.root import DsxConfig
from dsx.config.section import Section
from dsx.errors import DsxError, PluginError
from dsx.plugin import hooks
from dsx.plugin.calling import Member, Tagged, admit, refusal
from dsx.plugin.clashes import Clash, command_clashes, member_clashes, offer_clashes, raise_clashes
from dsx.plugin.discovery import Found, PluginWarning, find, warn_broken
from dsx.plugin.info import PluginInfo, info_of
from dsx.plugin.naming import Who, parts
from dsx.plugin.results import as_tuple
from dsx.plugin.types import (
    CheckpointPart,
    Claim,
    Command,
    Component,
    Facts,
    Family,
    Kernel,
    MeshAxis,
    ModelPass,
    PluginSpec,
    Problem,
    ReportRow,
    Resolved,
    World,
)
from dsx.warned import warn_outside

if TYPE_CHECKING:
    from dsx.engine.engine import Engine
    from dsx.planning.plan import Plan
    from dsx.plugin.roles import Observer

__all__ = ["PluginInfo", "PluginManager", "PluginWarning", "Tagged", "plugin_manager"]

Clashes = Literal["raise", "show"]


class PluginManager:
    """The plugins of one process or test. Made by `plugin_manager`; holds no global state."""

    def __init__(self, found: Sequence[Found], *, clashes: Clashes = "raise") -> None:
        """clashes: with ``"show"`` no clash raises: names with two owners are left out, and `info` tells of them."""
        self._clashes = clashes
        self._idle: list[PluginInfo] = []
        self._offered: dict[str, tuple[Tagged[Any], ...]] = {}
        self._failed: dict[str, tuple[str, str]] = {}
        members = self._admitted(found)
        self._member_clashes = member_clashes(members)
        if clashes == "raise":
            raise_clashes(self._member_clashes, what="plugins")
        aside = {id(member): clash for clash in self._member_clashes for member in clash.losers}
        for member in members:
            if id(member) in aside:
                clash = aside[id(member)]
                self._idle.append(info_of(member.found, "clash", str(clash), clash.remedy, name=member.spec.name))
        # Sorted by name, so that nothing can come to depend on the order in which plugins were found.
        kept = sorted((item for item in members if id(item) not in aside), key=lambda member: member.spec.name)
        self._members = {member.spec.name: member for member in kept}

    def _admitted(self, found: Sequence[Found]) -> list[Member]:
        machine = pluggy.PluginManager("dsx")
        machine.add_hookspecs(hooks)
        members: list[Member] = []
        for item in found:
            if item.state != "active":
                self._idle.append(info_of(item, item.state, item.cause, item.remedy))
                continue
            try:
                members.append(admit(machine, item))
            except PluginError as error:
                self._idle.append(info_of(item, "broken", *refusal(error)))
        for info in self._idle:
            if info.state == "broken":
                warn_broken(info.provider, info.cause, info.remedy)
        return members

    # What is there ----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the active plugins, sorted."""
        return tuple(self._members)

    @property
    def specs(self) -> tuple[PluginSpec, ...]:
        """What each active plugin says of itself, by name."""
        return tuple(member.spec for member in self._members.values())

    @property
    def sections(self) -> dict[str, tuple[str, type[Section]]]:
        """Key in the file -> (plugin that owns it, its model)."""
        return {key: (spec.name, model) for spec in self.specs for key, model in spec.sections.items()}

    def provider(self, plugin: str) -> str:
        """``'zero' (dsx-zero 0.1.0)``, as messages name it."""
        return self.who(plugin).provider

    def who(self, plugin: str) -> Who:
        """The plugin as messages speak of it, with how it is blocked."""
        member = self._members.get(plugin)
        return Who(repr(plugin), plugin) if member is None else member.who

    def clashes(self, *, commands: Iterable[str] = ()) -> tuple[Clash, ...]:
        """Every name with two owners. commands: those of the core, which no plugin may take."""
        offers = offer_clashes(self._asked("dsx_components"), self._members)
        return (
            *self._member_clashes,
            *offers,
            *command_clashes(self._asked("dsx_commands"), self._members, core=commands),
        )

    def info(self, *, commands: Iterable[str] = ()) -> tuple[PluginInfo, ...]:
        """Every plugin that was found, whatever its state, with what it provides; sorted by name."""
        clashes = {id(member): clash for clash in self.clashes(commands=commands) for member in clash.losers}
        active: list[PluginInfo] = []
        for name, member in self._members.items():
            clash = clashes.get(id(member))
            cause, remedy = self._failed.get(name, ("", "")) if clash is None else (str(clash), clash.remedy)
            state = "active" if clash is None else "clash"
            active.append(
                info_of(member.found, state, cause, remedy, name=name, provides=tuple(self._provided(member)))
            )
        return tuple(sorted([*active, *self._idle], key=lambda info: info.name))

    def _provided(self, member: Member) -> Iterable[str]:
        name = member.spec.name
        yield from (f"section {key}" for key in member.spec.sections)
        for offer in (item.value for item in self._asked("dsx_components") if item.plugin == name):
            if isinstance(offer, Kernel):
                yield f"kernel {offer.operation}={offer.variant}"
            else:
                yield f"{offer.kind.name} {offer.name}"
        yield from (f"command {item.value.name}" for item in self._asked("dsx_commands") if item.plugin == name)

    def broken(self) -> tuple[PluginInfo, ...]:
        """Plugins that were found but cannot be used, or failed to say what they offer, with the cause."""
        return tuple(info for info in self.info() if info.cause and info.state != "blocked")

    # Typed hooks ------------------------------------------------------------------------------------------------------

    def components(self) -> tuple[Tagged[Component[Any] | Kernel], ...]:
        """What all offer. Raises PluginError for a name with two owners, or leaves it out where clashes are shown."""
        offered = self._asked("dsx_components")
        clashes = offer_clashes(offered, self._members)
        if self._clashes == "raise":
            raise_clashes(clashes, what="names")
        lost = {(member.spec.name, id(offer)) for clash in clashes for member in clash.losers for offer in clash.offers}
        return tuple(item for item in offered if (item.plugin, id(item.value)) not in lost)

    def commands(self) -> tuple[Tagged[Command], ...]:
        """Commands of all plugins; of a name with two owners both, as only who calls it is refused."""
        return self._asked("dsx_commands")

    def resolve(self, config: DsxConfig, world: World, facts: Facts) -> tuple[Tagged[Resolved], ...]:
        return self._collect("dsx_resolve", Resolved, config=config, world=world, facts=facts)

    def mesh_axes(self, config: DsxConfig, world: World) -> tuple[Tagged[MeshAxis], ...]:
        return self._collect("dsx_mesh_axes", MeshAxis, config=config, world=world)

    def claims(self, config: DsxConfig, world: World) -> tuple[Tagged[Claim], ...]:
        return self._collect("dsx_claims", Claim, config=config, world=world)

    def passes(self, config: DsxConfig) -> tuple[Tagged[ModelPass], ...]:
        return self._collect("dsx_passes", ModelPass, config=config)

    def check_plan(self, plan: Plan) -> tuple[Tagged[Problem], ...]:
        return self._collect("dsx_check_plan", Problem, plan=plan)

    def construct(self, plan: Plan) -> tuple[Tagged[AbstractContextManager[Any]], ...]:
        return self._collect("dsx_construct", AbstractContextManager, single=True, plan=plan)

    def param_families(self, plan: Plan, model: torch.nn.Module) -> tuple[Tagged[Family], ...]:
        return self._collect("dsx_param_families", Family, plan=plan, model=model)

    def observers(self, plan: Plan, engine: Engine) -> tuple[Tagged[Observer], ...]:
        return self._collect("dsx_observers", object, plan=plan, engine=engine)

    def checkpoint_parts(self, engine: Engine) -> tuple[Tagged[CheckpointPart], ...]:
        return self._collect("dsx_checkpoint_parts", CheckpointPart, engine=engine)

    def report(self) -> tuple[Tagged[ReportRow], ...]:
        """Rows of every plugin; one that fails gives a row that says so."""
        rows: list[Tagged[ReportRow]] = []
        for name, member in self._members.items():
            try:
                rows += member.answers("dsx_report", ReportRow, {})
            except Exception as error:  # noqa: BLE001  (shown, so that the rest is called)
                note = "; what to do: ".join(parts(error, member.who))
                rows.append(Tagged(name, ReportRow("plugins", name, "report failed", False, note)))
        return tuple(rows)

    def teardown(self, engine: Engine) -> tuple[Tagged[Exception], ...]:
        """Let every plugin release what it holds; one warning for each that fails, of which none stopped the rest."""
        errors = self.each("dsx_teardown", engine=engine)[1]
        for error in errors:
            note = "".join(f"; {note}" for note in getattr(error.value, "__notes__", ()))
            warn_outside(f"{error.value}{note}", PluginWarning)
        return errors

    # Ways of calling --------------------------------------------------------------------------------------------------

    def call_owner(self, plugin: str, hook: str, **arguments: Any) -> Any:
        """The answer of the one plugin that owns a role, with all methods of the role."""
        member = self._members.get(plugin)
        if member is None or hook not in member.functions:
            found = ", ".join(member.functions) if member else "no such plugin"
            raise self.who(plugin).fault(f"owns a role but has no hook {hook}: found {found}, wanted {hook}")
        return member.own(hook, arguments)

    def each(self, hook: str, **arguments: Any) -> tuple[tuple[Tagged[Any], ...], tuple[Tagged[Exception], ...]]:
        """Call every plugin, whatever fails: (all values, all errors), each with its plugin."""
        values: list[Tagged[Any]] = []
        errors: list[Tagged[Exception]] = []
        for name, member in self._members.items():
            if hook not in member.functions:
                continue
            try:
                values += [Tagged(name, item) for item in as_tuple(member.call(hook, arguments, listed=True))]
            except Exception as error:  # noqa: BLE001  (kept, so that the rest is called)
                errors.append(Tagged(name, error))
        return tuple(values), tuple(errors)

    def _collect(self, hook: str, kind: Any, *, single: bool = False, **arguments: Any) -> tuple[Tagged[Any], ...]:
        members = self._members.values()
        return tuple(item for member in members for item in member.answers(hook, kind, arguments, single=single))

    def _asked(self, hook: str) -> tuple[Tagged[Any], ...]:
        """What all plugins offer, asked once. One that fails gives a warning, and stops only who needs its offers."""
        if hook not in self._offered:
            kind: Any = Command if hook == "dsx_commands" else (Component, Kernel)
            results: list[Tagged[Any]] = []
            for name, member in self._members.items():
                try:
                    results += member.answers(hook, kind, {})
                except DsxError as error:
                    cause, remedy = parts(error, member.who)
                    self._failed[name] = (cause, remedy)
                    warn_broken(member.who.provider, cause, remedy)
            self._offered[hook] = tuple(results)
        return self._offered[hook]


def plugin_manager(
    *, extra: Sequence[object | str] = (), block: Sequence[str] = (), clashes: Clashes = "raise"
) -> PluginManager:
    """The plugins here: installed (entry points of the group ``dsx``), of the project, of the user, and those given.

    The project's are those that ``[tool.dsx] plugins`` names in the nearest pyproject.toml from the working directory
    upward, the user's those in the environment variable DSX_PLUGINS. A module that is named twice counts once.

    extra: plugin objects, modules, or names of modules. block: names of entry points, modules or distributions, beside
    those in the environment variable DSX_PLUGINS_BLOCK (separated by commas, as in DSX_PLUGINS). clashes: ``"show"``
    leaves out names with two owners and tells of them in `PluginManager.info`, for commands that must run whatever is
    installed. A broken plugin gives one warning. Raises PluginError on a clash, ConfigError for a bad pyproject.toml.
    """
    named = os.environ.get("DSX_PLUGINS_BLOCK", "").split(",")
    blocked = frozenset(name.strip() for name in (*block, *named) if name.strip())
    return PluginManager(find(extra, blocked=blocked), clashes=clashes)
