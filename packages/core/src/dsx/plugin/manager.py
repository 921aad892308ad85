"""Finds plugins, checks their word against the hooks, and calls them: typed, tagged, and with every failure named."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy
import torch

from dsx.config.root import DsxConfig
from dsx.config.section import Section
from dsx.errors import DsxError, PluginError
from dsx.plugin import hooks
from dsx.plugin.discovery import Found, PluginWarning, discover, given, warn_broken
from dsx.plugin.inspection import inspect_plugin
from dsx.plugin.types import (
    API_VERSION,
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

if TYPE_CHECKING:
    from dsx.engine.engine import Engine
    from dsx.planning.plan import Plan
    from dsx.plugin.roles import Observer

__all__ = ["PluginInfo", "PluginManager", "PluginWarning", "Tagged", "plugin_manager"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One row of ``dsx plugins``. State: active, blocked, or broken with its cause."""

    name: str
    distribution: str
    version: str
    state: str
    provides: tuple[str, ...] = ()
    cause: str = ""

    @property
    def provider(self) -> str:
        """``'zero' (dsx-zero 0.1.0)``."""
        return f"{self.name!r} ({' '.join(part for part in (self.distribution, self.version) if part)})"


@dataclass(frozen=True, slots=True)
class Tagged(Generic[T]):
    """One value of a hook's result, with the name of the plugin that gave it."""

    plugin: str
    value: T


@dataclass(frozen=True, slots=True)
class _Member:
    spec: PluginSpec
    found: Found
    functions: Mapping[str, Callable[..., Any]]


class PluginManager:
    """The plugins of one process or test. Made by `plugin_manager`; holds no global state."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._pluggy = pluggy.PluginManager("dsx")
        self._pluggy.add_hookspecs(hooks)
        self._idle: list[PluginInfo] = []
        self._offered: dict[str, tuple[Tagged[Any], ...]] = {}
        self._failed: dict[str, str] = {}
        members: list[_Member] = []
        for item in found:
            if item.state != "active":
                self._idle.append(PluginInfo(item.name, item.distribution, item.version, item.state, (), item.cause))
                continue
            try:
                members.append(self._admit(item))
            except PluginError as error:
                self._idle.append(PluginInfo(item.name, item.distribution, item.version, "broken", (), str(error)))
        for info in self._idle:
            if info.state == "broken":
                warn_broken(info.provider, info.cause)
        # Sorted by name, so that nothing can come to depend on the order in which plugins were found.
        self._members = {member.spec.name: member for member in sorted(members, key=lambda member: member.spec.name)}
        self._refuse_clashes(members)

    def _admit(self, found: Found) -> _Member:
        functions = inspect_plugin(self._pluggy, found)
        try:
            spec = functions["dsx_plugin"]()
        except Exception as error:
            raise PluginError(f"dsx_plugin() raised {type(error).__name__}: {error}") from error
        _check_spec(spec)
        # Last, because pluggy leaves a plugin that it refuses half registered.
        self._pluggy.register(found.plugin, name=f"{found.provider}#{id(found.plugin)}")
        return _Member(spec, found, functions)

    def _refuse_clashes(self, members: Sequence[_Member]) -> None:
        names: dict[str, list[str]] = {}
        sections: dict[str, list[str]] = {key: ["the core itself"] for key in DsxConfig.model_fields}
        for member in sorted(members, key=lambda member: (member.spec.name, member.found.provider)):
            names.setdefault(member.spec.name, []).append(member.found.provider)
            for key in member.spec.sections:
                sections.setdefault(key, []).append(f"{member.spec.name!r} ({member.found.provider})")
        problems = [f"the name {key!r} is taken by {' and '.join(who)}" for key, who in names.items() if len(who) > 1]
        problems += [
            f"section {key!r} is owned by {' and '.join(who)}" for key, who in sections.items() if len(who) > 1
        ]
        if problems:
            raise PluginError(
                "plugins clash: " + "; ".join(problems) + "\n    what to do: uninstall one, or block it: "
                "DSX_PLUGINS_BLOCK=<entry point>, or plugin_manager(block=[...])"
            )

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
        member = self._members.get(plugin)
        return repr(plugin) if member is None else f"{plugin!r} ({member.found.provider})"

    def info(self) -> tuple[PluginInfo, ...]:
        """Every plugin that was found, whatever its state, with what it provides; sorted by name."""
        provided: dict[str, list[str]] = {name: [] for name in self._members}
        for name, member in self._members.items():
            provided[name] += [f"section {key}" for key in member.spec.sections]
        for item in self.components():
            offer = item.value
            if isinstance(offer, Kernel):
                provided[item.plugin].append(f"kernel {offer.operation}={offer.variant}")
            else:
                provided[item.plugin].append(f"{offer.kind.name} {offer.name}")
        for command in self.commands():
            provided[command.plugin].append(f"command {command.value.name}")
        active = [
            PluginInfo(
                name, found.distribution, found.version, "active", tuple(provided[name]), self._failed.get(name, "")
            )
            for name, found in ((name, member.found) for name, member in self._members.items())
        ]
        return tuple(sorted([*active, *self._idle], key=lambda info: info.name))

    def broken(self) -> tuple[PluginInfo, ...]:
        """Plugins that were found but cannot be used, or failed to say what they offer, with the cause."""
        return tuple(info for info in self.info() if info.cause and info.state != "blocked")

    # Typed hooks ------------------------------------------------------------------------------------------------------

    def components(self) -> tuple[Tagged[Component[Any] | Kernel], ...]:
        return self._offers("dsx_components", (Component, Kernel))

    def commands(self) -> tuple[Tagged[Command], ...]:
        return self._offers("dsx_commands", Command)

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
        rows, errors = self.each("dsx_report")
        failed = tuple(
            Tagged(e.plugin, ReportRow("plugins", e.plugin, "report failed", False, str(e.value))) for e in errors
        )
        return tuple(Tagged(row.plugin, row.value) for row in rows) + failed

    def teardown(self, engine: Engine) -> tuple[Tagged[Exception], ...]:
        """Let every plugin release what it holds; gives the errors, of which none stopped the rest."""
        return self.each("dsx_teardown", engine=engine)[1]

    # Ways of calling --------------------------------------------------------------------------------------------------

    def call_owner(self, plugin: str, hook: str, **arguments: Any) -> Any:
        """The answer of the one plugin that owns a role."""
        member = self._members.get(plugin)
        if member is None or hook not in member.functions:
            raise PluginError(
                f"plugin {self.provider(plugin)} owns a role but has no hook {hook}: found "
                f"{', '.join(member.functions) if member else 'no such plugin'}, wanted {hook}\n"
                f"    what to do: report it to the plugin's authors, or block the plugin"
            )
        return self._call(member, hook, arguments)

    def each(self, hook: str, **arguments: Any) -> tuple[tuple[Tagged[Any], ...], tuple[Tagged[Exception], ...]]:
        """Call every plugin, whatever fails: (all values, all errors), each with its plugin."""
        values: list[Tagged[Any]] = []
        errors: list[Tagged[Exception]] = []
        for name, member in self._members.items():
            if hook not in member.functions:
                continue
            try:
                values += [Tagged(name, item) for item in _as_tuple(self._call(member, hook, arguments, listed=True))]
            except Exception as error:  # noqa: BLE001  (kept, so that the rest is called)
                errors.append(Tagged(name, error))
        return tuple(values), tuple(errors)

    def _collect(self, hook: str, kind: Any, *, single: bool = False, **arguments: Any) -> tuple[Tagged[Any], ...]:
        members = self._members.values()
        return tuple(item for member in members for item in self._answers(member, hook, kind, arguments, single=single))

    def _offers(self, hook: str, kind: Any) -> tuple[Tagged[Any], ...]:
        """What all plugins offer, asked once. One that fails gives a warning, and stops only who needs its offers."""
        if hook not in self._offered:
            results: list[Tagged[Any]] = []
            for name, member in self._members.items():
                try:
                    results += self._answers(member, hook, kind, {})
                except DsxError as error:
                    self._failed[name] = str(error)
                    warn_broken(self.provider(name), str(error))
            self._offered[hook] = tuple(results)
        return self._offered[hook]

    def _answers(
        self, member: _Member, hook: str, kind: Any, arguments: Mapping[str, Any], *, single: bool = False
    ) -> list[Tagged[Any]]:
        if hook not in member.functions:
            return []
        answer = self._call(member, hook, arguments, listed=not single)
        items = () if answer is None else (answer,) if single else answer
        for item in items:
            if not isinstance(item, kind):
                raise PluginError(
                    f"plugin {self.provider(member.spec.name)} gave the wrong kind of answer in {hook}: found "
                    f"{type(item).__name__} {item!r:.80}, wanted {_kind_name(kind)}"
                )
        return [Tagged(member.spec.name, item) for item in items]

    def _call(self, member: _Member, hook: str, arguments: Mapping[str, Any], *, listed: bool = False) -> Any:
        function = member.functions[hook]
        try:
            answer = function(**{name: arguments[name] for name in inspect.signature(function).parameters})
            # A generator raises when it is iterated: that must happen here, where the plugin is still known.
            return _as_tuple(answer) if listed else answer
        except DsxError as error:
            error.add_note(f"raised in {hook} of plugin {self.provider(member.spec.name)}")
            raise
        except Exception as error:
            raise PluginError(
                f"plugin {self.provider(member.spec.name)} failed in {hook}: {type(error).__name__}: {error}\n"
                f"    what to do: report it to its authors, or block it with DSX_PLUGINS_BLOCK={member.found.name}"
            ) from error


def plugin_manager(*, extra: Sequence[object | str] = (), block: Sequence[str] = ()) -> PluginManager:
    """The plugins installed here (entry points of the group ``dsx``) and those given, but those blocked.

    extra: plugin objects, modules, or names of modules. block: names of entry points, beside those in the environment
    variable DSX_PLUGINS_BLOCK (separated by commas). A broken plugin gives one warning. Raises PluginError on a clash.
    """
    named = os.environ.get("DSX_PLUGINS_BLOCK", "").split(",")
    blocked = frozenset(name.strip() for name in (*block, *named) if name.strip())
    return PluginManager([*discover(blocked), *(given(item) for item in extra)])


def _as_tuple(answer: Any) -> tuple[Any, ...]:
    if answer is None:
        return ()
    if isinstance(answer, Iterable) and not isinstance(answer, str | bytes | Mapping):
        return tuple(answer)
    raise TypeError(f"found {type(answer).__name__}, wanted an iterable")


def _kind_name(kind: Any) -> str:
    return " or ".join(item.__name__ for item in kind) if isinstance(kind, tuple) else kind.__name__


def _check_spec(spec: Any) -> None:
    if not isinstance(spec, PluginSpec):
        raise PluginError(f"dsx_plugin() gave {type(spec).__name__}, wanted a PluginSpec")
    if spec.api != API_VERSION:
        raise PluginError(
            f"it is written for API version {spec.api}, and this dsx-core has API version {API_VERSION}; "
            f"install matching versions of both"
        )
    sections: dict[str, Any] = dict(spec.sections)
    for key, model in sections.items():
        if not (isinstance(model, type) and issubclass(model, Section)):
            raise PluginError(f"section {key!r} is {model!r}, wanted a subclass of dsx.plugin.Section")
