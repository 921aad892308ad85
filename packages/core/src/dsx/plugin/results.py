"""What hooks may answer: the right class, fields of the right type, and every method of a role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any

from dsx.plugin.naming import Who
from dsx.plugin.roles import Driver, Loop, Observer
from dsx.plugin.types import Component, Kernel, Kind

ROLES: Mapping[str, tuple[type, str]] = {
    "dsx_make_driver": (Driver, "a Driver"),
    "dsx_make_loop": (Loop, "a Loop"),
    "dsx_observers": (Observer, "an Observer; derive from dsx.engine.observers.Observer, which has them all, empty"),
}
"""Hooks whose answers must have all methods of a role."""

PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, NoneType),
    "str | None": (str, NoneType),
    "tuple[str, ...]": (tuple,),
}
"""Annotations of fields that can be held against a value, as they are written in ``dsx.plugin.types``."""


def as_tuple(answer: Any) -> tuple[Any, ...]:
    """The values of an iterable answer. A generator raises when it is iterated: here, where the plugin is known."""
    if answer is None:
        return ()
    if isinstance(answer, Iterable) and not isinstance(answer, str | bytes | Mapping):
        return tuple(answer)
    raise TypeError(f"found {type(answer).__name__}, wanted an iterable")


def check_kind(item: Any, kind: Any, *, hook: str, who: Who) -> None:
    """Refuse an answer of another class, or one with a field of another type than it is declared with."""
    if not isinstance(item, kind):
        raise who.wrong(hook, found=f"{type(item).__name__} {item!r:.80}", wanted=kind_name(kind))
    if is_dataclass(item):
        name, wanted = _wrong_field(item)
        if name:
            found = f"{type(item).__name__} with {name}={getattr(item, name)!r:.60}"
            raise who.wrong(hook, found=found, wanted=wanted)


def check_role(item: Any, *, hook: str, who: Who) -> None:
    """Refuse an object that lacks a method of the role that this hook's answers play."""
    role, wanted = ROLES[hook]
    lacking = missing(item, role)
    if lacking:
        raise who.wrong(hook, found=f"{type(item).__name__} without {', '.join(lacking)}", wanted=wanted)


def missing(item: Any, role: type) -> list[str]:
    """Public members of a protocol that an object does not have, or that are no method where the role has one."""
    return [name for name in members_of(role) if not _has(item, name, method=callable(getattr(role, name, None)))]


def members_of(role: type) -> Sequence[str]:
    """The public names that a protocol declares, in its order."""
    declared = (*getattr(role, "__annotations__", {}), *vars(role))
    return [name for name in dict.fromkeys(declared) if not name.startswith("_")]


def kind_name(kind: Any) -> str:
    """``Component or Kernel``."""
    return " or ".join(item.__name__ for item in kind) if isinstance(kind, tuple) else str(kind.__name__)


def _has(item: Any, name: str, *, method: bool) -> bool:
    # The class first: asking the object for a property would run it.
    found = getattr(type(item), name, None)
    if found is None:
        found = getattr(item, name, None) if method else True if hasattr(item, name) else None
    return found is not None and (callable(found) or not method)


def _wrong_field(item: Any) -> tuple[str, str]:
    """(name, what is wanted) of the first field whose value is not as it is declared; ("", "") if all are well."""
    for field in fields(item):
        value, wanted = getattr(item, field.name), PLAIN.get(str(field.type))
        if wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            return field.name, f"{field.name} to be {field.type}"
        if tuple in (wanted or ()) and not all(isinstance(part, str) for part in value):
            return field.name, f"{field.name} to be {field.type}"
        if (
            field.name == "load"
            and isinstance(item, Component | Kernel)
            and not (callable(value) or type(value) is str)
        ):
            return field.name, 'load to be "module:attribute" or a function'
        if field.name == "kind" and isinstance(item, Component) and not isinstance(value, Kind):
            return field.name, "kind to be a Kind, such as dsx.plugin.OPTIMIZER"
    return "", ""
