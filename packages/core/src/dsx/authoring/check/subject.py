"""The plugin under check, loaded, and mended where it breaks the contract, so that all that is left can be checked."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pluggy

from dsx import __version__
from dsx.authoring.check.journal import Journal
from dsx.authoring.check.state import State
from dsx.authoring.check.target import Target
from dsx.authoring.check.watch import Watch
from dsx.builtin import plugin as core
from dsx.config.root import DsxConfig
from dsx.errors import did_you_mean
from dsx.plugin import API_VERSION, Component, Kernel, PluginSpec, Section, hookimpl
from dsx.plugin import hooks as declared
from dsx.plugin.discovery import Found
from dsx.plugin.inspection import hook_names
from dsx.plugin.manager import PluginManager


@dataclass(frozen=True, slots=True)
class Marked:
    """One function that the plugin marks as a hook, with what is wrong with it."""

    hook: str
    function: Callable[..., Any]
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A plugin and what of it can be used."""

    target: Target
    others: tuple[Target, ...]
    plugin: Any
    marked: tuple[Marked, ...]
    said: Any
    """What dsx_plugin gave, whatever it is."""
    spec: PluginSpec
    """The same with the right API version, and with those sections that can be one."""
    offers: tuple[Component[Any] | Kernel, ...]
    """Everything of the right type that it offers."""
    journal: Journal
    config: Mapping[str, Any] | None = None
    """A further configuration to live through, from the author."""
    before: State | None = None
    """The process before the plugin was asked for anything but its import."""

    @property
    def hooks(self) -> dict[str, Callable[..., Any]]:
        """The hooks that dsx can call."""
        return {item.hook: item.function for item in self.marked if not item.problem}

    def manager(self, watch: Watch) -> PluginManager:
        """The core and this plugin alone, guarded; without what is broken, and what clashes with the core."""
        module = types.ModuleType(f"checked_{self.target.name}")
        for name, function in self.hooks.items():
            setattr(module, name, hookimpl(specname=name)(watch.hook(name, function)))
        module.dsx_plugin = hookimpl(lambda: self.spec)  # type: ignore[attr-defined]
        module.dsx_components = hookimpl(lambda: without_clashes(self.offers))  # type: ignore[attr-defined]
        provider = self.target.distribution or f"module {self.target.load}"
        return PluginManager(
            [
                Found("core", "dsx-core", __version__, plugin=core),
                Found(self.target.name, provider, self.target.version, plugin=module),
            ]
        )


def examine(plugin: Any) -> tuple[Marked, ...]:
    """Every marked function, held against the specification of its hook."""
    manager = pluggy.PluginManager("dsx")
    found: list[Marked] = []
    for name in sorted(dir(plugin)):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is not None:
            wrapper = bool(options.get("wrapper") or options.get("hookwrapper"))
            found.append(_held(options.get("specname") or name, getattr(plugin, name), wrapper=wrapper))
        elif name in hook_names():
            problem = f"{name} is not marked with @hookimpl, so that it would never be called"
            found.append(Marked(name, getattr(plugin, name), problem, f"write @hookimpl above {name}"))
    return tuple(found)


def _held(hook: str, function: Callable[..., Any], *, wrapper: bool) -> Marked:
    signature, known = inspect.signature(function), hook_names()
    if hook not in known:
        found = f"{hook}{signature} is no hook of dsx{did_you_mean(hook, known)}; hooks are {', '.join(known)}"
        return Marked(hook, function, found, "correct its name, or take the mark @hookimpl away")
    wanted = inspect.signature(getattr(declared, hook))
    extra = [name for name in signature.parameters if name not in wanted.parameters]
    if extra:
        found = f"{hook}{signature} asks for {', '.join(extra)}, which dsx does not pass; it passes {hook}{wanted}"
        return Marked(hook, function, found, f"take away the argument {', '.join(extra)}")
    if wrapper:
        found = f"{hook} is a wrapper, wanted a function that gives values"
        return Marked(hook, function, found, "mark it with plain @hookimpl")
    return Marked(hook, function)


def make_subject(
    target: Target,
    plugin: Any,
    *,
    others: tuple[Target, ...],
    journal: Journal,
    config: Mapping[str, Any] | None,
    before: State | None = None,
) -> Subject:
    """Ask the plugin who it is and what it offers; what is wrong with that, the steps of the contract say."""
    watch = Watch(journal)
    marked = examine(plugin)
    usable = {item.hook: item.function for item in marked if not item.problem}
    said = watch.call("dsx_plugin", usable["dsx_plugin"]) if "dsx_plugin" in usable else None
    offers = watch.ask("dsx_components", usable["dsx_components"], {}) if "dsx_components" in usable else ()
    return Subject(target, others, plugin, marked, said, _mended(said, target), offers, journal, config, before)


def _mended(said: Any, target: Target) -> PluginSpec:
    if not isinstance(said, PluginSpec):
        return PluginSpec(name=target.name, api=API_VERSION, summary="")
    given: Any = said.sections
    sections = {
        key: model
        for key, model in (given.items() if isinstance(given, Mapping) else ())
        if isinstance(model, type) and issubclass(model, Section) and key not in DsxConfig.model_fields
    }
    name = f"{said.name} itself" if said.name == core.SPEC.name else str(said.name)
    return PluginSpec(name=name, api=API_VERSION, summary=str(said.summary), sections=sections)


def bare() -> PluginManager:
    """The core alone."""
    return PluginManager([Found("core", "dsx-core", __version__, plugin=core)])


def names_of(offer: Component[Any] | Kernel) -> tuple[str, ...]:
    """The names that an offer takes, as the registry compares them."""
    if isinstance(offer, Kernel):
        return (f"kernel {offer.operation}={offer.variant}",)
    return tuple(f"{offer.kind.name} {name.lower()}" for name in dict.fromkeys((offer.name, *offer.aliases)))


def without_clashes(offers: tuple[Component[Any] | Kernel, ...]) -> list[Component[Any] | Kernel]:
    """What can be registered beside the core: each name once."""
    taken = {name for offer in core.dsx_components() for name in names_of(offer)}
    kept = []
    for offer in offers:
        if not taken & set(names_of(offer)):
            taken |= set(names_of(offer))
            kept.append(offer)
    return kept
