"""Stands between dsx and a plugin: each call is announced, guarded and remembered, and a fault stops nothing else."""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from dsx.authoring.check.journal import Journal
from dsx.engine.observers import Observer
from dsx.errors import DsxError, PluginError
from dsx.plugin.naming import Who, parts
from dsx.plugin.results import ROLES, as_tuple, check_kind, check_role
from dsx.plugin.roles import Driver
from dsx.plugin.types import (
    CheckpointPart,
    Claim,
    Command,
    Component,
    Family,
    Kernel,
    MeshAxis,
    ModelPass,
    PluginSpec,
    Problem,
    ReportRow,
    Resolved,
)

MANY: Mapping[str, tuple[type, ...]] = {
    "dsx_components": (Component, Kernel),
    "dsx_commands": (Command,),
    "dsx_resolve": (Resolved,),
    "dsx_mesh_axes": (MeshAxis,),
    "dsx_claims": (Claim,),
    "dsx_passes": (ModelPass,),
    "dsx_check_plan": (Problem,),
    "dsx_param_families": (Family,),
    "dsx_observers": (object,),
    "dsx_checkpoint_parts": (CheckpointPart,),
    "dsx_report": (ReportRow,),
}
"""Hooks that give several values, with the types of each."""

ONE: Mapping[str, tuple[type, ...]] = {
    "dsx_plugin": (PluginSpec,),
    "dsx_construct": (AbstractContextManager, type(None)),
    "dsx_make_driver": (Driver,),
    "dsx_make_loop": (object,),
    "dsx_teardown": (type(None),),
}
"""Hooks that give one value."""

OBSERVED = tuple(name for name in vars(Observer) if not name.startswith("_"))
PLUGIN = Who("")
"""The plugin under check, whose name the report bears."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong in one call of the plugin."""

    where: str
    what: str


class Watch:
    """Calls into a plugin. Text only is remembered, so that nothing of the plugin is kept alive."""

    def __init__(self, journal: Journal, *, strict: bool = True, silent: bool = True) -> None:
        """strict: an error meant for the user is a fault as well. silent: so is what is printed."""
        self._journal = journal
        self._strict = strict
        self._silent = silent
        self.troubles: list[Trouble] = []

    def take(self) -> list[Trouble]:
        """The troubles so far, each once; then there are none."""
        found = list(dict.fromkeys(self.troubles))
        self.troubles.clear()
        return found

    def note(self, where: str, what: str) -> None:
        """Remember a trouble."""
        self.troubles.append(Trouble(where, what))

    def call(self, where: str, function: Callable[..., Any], /, *args: Any, default: Any = None, **named: Any) -> Any:
        """What the function gives; ``default`` where it fails, or has ended a process before."""
        if not self._journal.may(where):
            return default
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                return function(*args, **named)
        except DsxError as error:
            if not self._strict:
                raise
            self.note(where, f"raised {type(error).__name__}: {error}")
        except (Exception, SystemExit) as error:  # noqa: BLE001  (it is what is looked for)
            self.note(where, f"raised {type(error).__name__}: {error}{_place(error)}")
        finally:
            if self._silent and printed.getvalue().strip():
                self.note(where, f"printed {printed.getvalue().strip()!r:.120}")
        return default

    def ask(self, hook: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """A hook's answer, of which only what has the right type is left; passed as the manager passes arguments."""
        taken = {name: arguments[name] for name in inspect.signature(function).parameters if name in arguments}
        if hook in MANY:
            answer = self.call(hook, lambda: as_tuple(function(**taken)), default=())
            return tuple(item for item in answer if self._fits(hook, item, MANY[hook]))
        answer = self.call(hook, function, **taken)
        return answer if answer is not None and self._fits(hook, answer, ONE[hook]) else None

    def _fits(self, hook: str, item: Any, kinds: tuple[type, ...]) -> bool:
        try:
            check_kind(item, kinds, hook=hook, who=PLUGIN)
            if hook in ROLES:
                check_role(item, hook=hook, who=PLUGIN)
        except PluginError as error:
            self.note(hook, parts(error, PLUGIN)[0])
            return False
        return True

    # Stand-ins that are guarded themselves ------------------------------------------------------------------------

    def hook(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, guarded, and so is what it gives."""

        @functools.wraps(function)
        def guarded(**arguments: Any) -> Any:
            answer = self.ask(name, function, arguments)
            if name not in MANY:
                return answer
            return [self._guard(item) for item in answer]

        return guarded

    def _guard(self, item: Any) -> Any:
        if isinstance(item, CheckpointPart):
            where = f"checkpoint part {item.name!r}"
            check = item.check and functools.partial(self.call, f"{where}: check", item.check)
            return replace(
                item,
                state=functools.partial(self.call, f"{where}: state", item.state, default={}),
                load=functools.partial(self.call, f"{where}: load", item.load),
                check=check,
            )
        if isinstance(item, ModelPass):
            return replace(item, apply=self._applied(item))
        if all(callable(getattr(item, name, None)) for name in OBSERVED):
            return observed(item, self)
        return item

    def _applied(self, item: ModelPass) -> Callable[..., Any]:
        def apply(model: Any, plan: Any) -> Any:
            return self.call(f"model pass {item.name!r}", item.apply, model, plan, default=model)

        return apply


def observed(observer: Any, watch: Watch) -> Observer:
    """An observer that hands each call on, guarded."""
    outer = Observer()
    for name in OBSERVED:
        where = f"observer {type(observer).__name__}.{name}"
        setattr(outer, name, functools.partial(watch.call, where, getattr(observer, name)))
    return outer


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" (at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}, line {trace.tb_lineno})"
