"""What a plugin says of itself, and the names it takes: held against the hooks, the core and the other plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsx.authoring.check.findings import Finding, judged, not_applicable, ok, wrong
from dsx.authoring.check.loading import load
from dsx.authoring.check.subject import Subject, examine, names_of
from dsx.authoring.check.target import Target
from dsx.authoring.check.watch import Watch
from dsx.builtin import plugin as core
from dsx.cli.main import CORE_COMMANDS
from dsx.config.root import DsxConfig
from dsx.plugin import API_VERSION, Command, PluginSpec, Section

AREA = "contract"


def identity(subject: Subject) -> Iterator[Finding]:
    """Whether dsx_plugin gives a spec, of this API version, with sections."""
    said = subject.said
    if not any(item.hook == "dsx_plugin" for item in subject.marked):
        found = "there is no function dsx_plugin marked with @hookimpl, wanted one that gives a PluginSpec"
        yield wrong(AREA, "spec", found, "write dsx_plugin() and give a PluginSpec")
        return
    if not isinstance(said, PluginSpec):
        watch = Watch(subject.journal)
        function = next(item.function for item in subject.marked if item.hook == "dsx_plugin")
        answer = watch.call("dsx_plugin", function)
        told = [trouble.what for trouble in watch.take()] or [f"gave {type(answer).__name__} {answer!r:.60}"]
        yield wrong(
            AREA, "spec", f"dsx_plugin {'; '.join(told)}, wanted a PluginSpec", "give a PluginSpec(name=…, api=1, …)"
        )
        return
    yield ok(AREA, "spec", f"plugin {said.name!r}: {said.summary or 'it has no summary'}")
    yield judged(
        AREA,
        "API version",
        [] if said.api == API_VERSION else [f"it is written for {said.api}, and this dsx-core has {API_VERSION}"],
        good=str(API_VERSION),
        remedy="install matching versions, or move the plugin to the newer one and set PluginSpec(api=…)",
    )
    given: Any = said.sections
    pairs = list(given.items()) if isinstance(given, Mapping) else []
    problems = [] if isinstance(given, Mapping) else [f"sections is {type(given).__name__}, wanted a mapping"]
    problems += [
        f"section {key!r} is {model!r}, wanted a subclass of dsx.plugin.Section"
        for key, model in pairs
        if not (isinstance(model, type) and issubclass(model, Section))
    ]
    remedy = "derive its class from dsx.plugin.Section"
    yield judged(
        AREA, "section classes", problems, good=", ".join(str(key) for key, _ in pairs) or "none", remedy=remedy
    )


def hooks(subject: Subject) -> Iterator[Finding]:
    """Whether dsx knows each hook, and passes what it asks for; one finding for each that it cannot call."""
    for item in subject.marked:
        if item.problem:
            yield wrong(AREA, f"hook {item.hook}", item.problem, item.remedy)
    good = sorted(subject.hooks)
    yield ok(AREA, "hooks", ", ".join(good)) if good else not_applicable(AREA, "hooks", "none that dsx can call")


def clashes(subject: Subject) -> Iterator[Finding]:
    """Whether another plugin, or the core, has one of its names; a finding for each name."""
    own = dict(_names(subject))
    doubled = [name for name, count in _counted(subject).items() if count > 1]
    found = [f"{name} is offered twice by this plugin itself" for name in doubled]
    providers = [("the core", _core_names()), *_other_names(subject)]
    for provider, theirs in providers:
        found += [f"{name} is taken by {provider}" for name in own if name in theirs]
    for problem in found:
        yield wrong(AREA, problem.partition(" is ")[0], problem, "choose another name: names are unique within a kind")
    if not found:
        asked = len(providers) - 1
        yield ok(AREA, "names", f"{len(own)} names, none taken by the core or by {asked} other installed plugins")


def _names(subject: Subject) -> Iterator[tuple[str, None]]:
    yield from ((name, None) for name in _counted(subject))


def _counted(subject: Subject) -> dict[str, int]:
    """Every name that the plugin takes -> how often."""
    commands = subject.hooks.get("dsx_commands")
    listed = Watch(subject.journal).ask("dsx_commands", commands, {}) if commands else ()
    names = [name for offer in subject.offers for name in names_of(offer)]
    names += [f"command {command.name}" for command in listed]
    if isinstance(subject.said, PluginSpec):
        names += [f"plugin {subject.said.name}", *(f"section {key}" for key in _sections(subject.said))]
    return {name: names.count(name) for name in names}


def _sections(spec: PluginSpec) -> list[str]:
    given: Any = spec.sections
    return [str(key) for key in given] if isinstance(given, Mapping) else []


def _core_names() -> set[str]:
    names = {name for offer in core.dsx_components() for name in names_of(offer)}
    names |= {f"command {command.name}" for command in CORE_COMMANDS}
    return names | {f"plugin {core.SPEC.name}", *(f"section {key}" for key in DsxConfig.model_fields)}


def _other_names(subject: Subject) -> Iterator[tuple[str, set[str]]]:
    """Of each other plugin that can be asked; one that cannot is not this plugin's matter."""
    for other in subject.others:
        if other.top != "dsx" and subject.journal.may(f"asking {other.given} for its names"):
            try:
                yield f"{other.name!r} ({other.given})", _asked(other, load(other), subject)
            except (Exception, SystemExit):  # noqa: BLE001
                continue


def _asked(other: Target, plugin: Any, subject: Subject) -> set[str]:
    watch = Watch(subject.journal)
    usable = {item.hook: item.function for item in examine(plugin) if not item.problem}
    spec = watch.ask("dsx_plugin", usable["dsx_plugin"], {}) if "dsx_plugin" in usable else None
    names = {f"plugin {spec.name}", *(f"section {key}" for key in _sections(spec))} if spec else set()
    for hook in ("dsx_components", "dsx_commands"):
        for item in watch.ask(hook, usable[hook], {}) if hook in usable else ():
            names |= {f"command {item.name}"} if isinstance(item, Command) else set(names_of(item))
    return names
