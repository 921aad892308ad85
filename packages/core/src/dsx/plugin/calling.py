"""One plugin that was found and accepted: its hooks are called here, and every failure names it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import pluggy
import torch

from dsx.config.section import Section
from dsx.errors import PluginError
from dsx.plugin.discovery import Found
from dsx.plugin.inspection import inspect_plugin, refuse, register
from dsx.plugin.naming import REMEDY, Named, NamedContext, Who, naming
from dsx.plugin.results import ROLES, as_tuple, check_kind, check_role
from dsx.plugin.types import API_VERSION, CheckpointPart, Family, ModelPass, PluginSpec

T = TypeVar("T")

AUTHORS = "report it to the plugin's authors, or install another version of it"


@dataclass(frozen=True, slots=True)
class Tagged(Generic[T]):
    """One value of a hook's result, with the name of the plugin that gave it."""

    plugin: str
    value: T


@dataclass(frozen=True, slots=True)
class Member:
    """An active plugin."""

    spec: PluginSpec
    found: Found
    functions: Mapping[str, Callable[..., Any]]

    @property
    def who(self) -> Who:
        """The plugin as messages speak of it."""
        return Who(f"{self.spec.name!r} ({self.found.provider})", self.found.block)

    def call(self, hook: str, arguments: Mapping[str, Any], *, listed: bool = False) -> Any:
        """What the hook gives, as a tuple where it is ``listed``. Raises PluginError, or the plugin's own DsxError."""
        function = self.functions[hook]
        with naming(self.who, hook):
            answer = function(**{name: arguments[name] for name in inspect.signature(function).parameters})
            return as_tuple(answer) if listed else answer

    def answers(self, hook: str, kind: Any, arguments: Mapping[str, Any], *, single: bool = False) -> list[Tagged[Any]]:
        """The hook's values, checked and tagged, their functions under the plugin's name; none where it has no hook."""
        if hook not in self.functions:
            return []
        answer = self.call(hook, arguments, listed=not single)
        items = answer if not single else () if answer is None else (answer,)
        for item in items:
            check_kind(item, kind, hook=hook, who=self.who)
            if hook in ROLES:
                check_role(item, hook=hook, who=self.who)
        return [Tagged(self.spec.name, self._named(item, hook)) for item in items]

    def own(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """The one answer of a role's owner, which has all methods of the role."""
        answer = self.call(hook, arguments)
        if hook in ROLES:
            check_role(answer, hook=hook, who=self.who)
        return answer

    def _named(self, item: Any, hook: str) -> Any:
        """The value with its functions under the plugin's name; all are called while building, saving or loading."""
        who = self.who
        if isinstance(item, ModelPass):
            return replace(item, apply=Named(item.apply, who, f"model pass {item.name!r}", torch.nn.Module))
        if isinstance(item, Family):
            return replace(item, members=Named(item.members, who, f"members of family {item.name!r}"))
        if isinstance(item, CheckpointPart):
            part = f"of checkpoint part {item.name!r}"
            return replace(
                item,
                state=Named(item.state, who, f"state() {part}", dict),
                load=Named(item.load, who, f"load() {part}"),
                check=item.check if item.check is None else Named(item.check, who, f"check() {part}"),
            )
        return NamedContext(item, who, hook) if hook == "dsx_construct" else item


def admit(manager: pluggy.PluginManager, found: Found) -> Member:
    """The plugin as a member. Raises PluginError (cause, and what to do) for one that cannot be used."""
    try:
        functions, problems = inspect_plugin(manager, found)
    except Exception as error:
        raise refuse(f"its hooks cannot be looked at: {type(error).__name__}: {error}", AUTHORS) from error
    if "dsx_plugin" in functions:
        try:
            spec = functions["dsx_plugin"]()
        except Exception as error:
            raise refuse(f"dsx_plugin() raised {type(error).__name__}: {error}", AUTHORS) from error
        # Before all else: a plugin of another version may well have hooks that this one does not know.
        check_spec(spec, found)
        if not problems:
            register(manager, found, name=spec.name)
            return Member(spec, found, functions)
    raise refuse("; ".join(problems), AUTHORS)


def check_spec(spec: Any, found: Found) -> None:
    """Refuse what is no PluginSpec, is of another API version, or owns sections that are none."""
    if not isinstance(spec, PluginSpec):
        raise refuse(f"dsx_plugin() gave {type(spec).__name__}, wanted a PluginSpec", AUTHORS)
    if spec.api != API_VERSION:
        remedy = f"move its code to API version {API_VERSION}, then set PluginSpec(api={API_VERSION})"
        if found.version:
            remedy = f"install versions of both that match: pip install --upgrade dsx-core {found.distribution}"
        raise refuse(
            f"it is written for API version {spec.api}, and this dsx-core has API version {API_VERSION}; both must be "
            "the same",
            remedy,
        )
    name: Any = spec.name
    sections: Any = spec.sections
    if not isinstance(name, str) or not name:
        raise refuse(f"its PluginSpec has the name {name!r}, wanted a text that is not empty", AUTHORS)
    if not isinstance(sections, Mapping):
        raise refuse(f"its PluginSpec has the sections {sections!r}, wanted a mapping of key to Section", AUTHORS)
    for key, model in sections.items():
        if not (isinstance(model, type) and issubclass(model, Section)):
            raise refuse(f"section {key!r} is {model!r}, wanted a subclass of dsx.plugin.Section", AUTHORS)


def refusal(error: PluginError) -> tuple[str, str]:
    """(cause, what to do) of an error that `admit` raised."""
    cause, _, remedy = str(error).partition(REMEDY)
    return cause, remedy
