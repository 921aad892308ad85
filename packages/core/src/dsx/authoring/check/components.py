"""Everything that a plugin offers by name can be loaded, and can do what its kind asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import typer

from dsx.authoring.check.findings import Finding, judged, not_applicable, ok
from dsx.authoring.check.subject import Subject
from dsx.authoring.check.watch import Watch
from dsx.errors import PluginError
from dsx.kernels import OPERATIONS
from dsx.plugin import ACCELERATOR, CODEC, KINDS, MONITOR, RUNNER, STORE, Command, Component, Form, Kernel, Kind, Score
from dsx.plugin.roles import Accelerator, Codec, Monitor, Runner, Store
from dsx.registry.loading import load_object

AREA = "contract"
ROLES: tuple[tuple[Kind[Any], type], ...] = (
    (ACCELERATOR, Accelerator),
    (STORE, Store),
    (MONITOR, Monitor),
    (RUNNER, Runner),
    (CODEC, Codec),
)
"""Kinds whose components are classes, with what an instance must be able to do. Those of other kinds are called."""

REFERENCE = "torch"
REMEDY = "offer what the kind asks for: see dsx.plugin.kinds and dsx.plugin.roles"


def components(subject: Subject) -> Iterator[Finding]:
    """One finding for each component and each kernel variant."""
    if not subject.offers:
        yield not_applicable(AREA, "components", "it offers none")
    for offer in subject.offers:
        check = name_of(offer)
        if subject.journal.may(check):
            watch = Watch(subject.journal)
            watch.call(check, _judge, offer, subject, watch)
            problems = [trouble.what for trouble in watch.take()]
            yield judged(AREA, check, problems, good="it can be loaded, and has its kind's shape", remedy=REMEDY)


def name_of(offer: Component[Any] | Kernel) -> str:
    """An offer as messages name it."""
    if isinstance(offer, Kernel):
        return f"kernel {offer.operation}={offer.variant}"
    return f"{offer.kind.name} {offer.name}"


def _judge(offer: Component[Any] | Kernel, subject: Subject, watch: Watch) -> None:
    loaded = _loaded(offer.load, name_of(offer), subject, watch)
    if isinstance(offer, Kernel):
        for problem in kernel_problems(offer, subject):
            watch.note("kernel", problem)
    if loaded is None:
        return
    role = next((role for kind, role in ROLES if kind == offer.kind), None) if isinstance(offer, Component) else None
    known = isinstance(offer, Kernel) or offer.kind in KINDS
    if role is not None:
        for problem in shape_problems(loaded, role):
            watch.note("shape", problem)
    elif known and not callable(loaded):
        watch.note("shape", f"loads {type(loaded).__name__} {loaded!r:.60}, wanted a function or class")


def _loaded(load: str | Callable[[], Any], what: str, subject: Subject, watch: Watch) -> Any:
    try:
        return load_object(load, what=what, provider=f"{subject.spec.name!r} ({subject.target.given})")
    except PluginError as error:
        cause = error.__cause__ or error
        watch.note("load", f"{load!r} cannot be loaded: {type(cause).__name__}: {cause}")
    return None


def shape_problems(loaded: Any, role: type) -> Iterator[str]:
    """Which methods and attributes of a role a class lacks."""
    if not isinstance(loaded, type):
        yield f"loads {type(loaded).__name__} {loaded!r:.60}, wanted a class that fits dsx.plugin.{role.__name__}"
        return
    methods = [name for name, value in vars(role).items() if callable(value) or isinstance(value, staticmethod)]
    missing = [name for name in methods if name[0] != "_" and not callable(getattr(loaded, name, None))]
    annotations: Mapping[str, Any] = role.__annotations__
    missing += [name for name in annotations if not hasattr(loaded, name) and name not in _annotated(loaded)]
    if missing:
        yield f"{loaded.__name__} lacks {', '.join(missing)} of dsx.plugin.{role.__name__}"


def _annotated(kind: type) -> set[str]:
    return {name for part in kind.__mro__ for name in getattr(part, "__annotations__", {})}


def kernel_problems(kernel: Kernel, subject: Subject) -> Iterator[str]:
    """Operation, score, what it supports, and the form of an operation of its own."""
    offered = {(offer.operation, offer.variant) for offer in subject.offers if isinstance(offer, Kernel)}
    own = kernel.operation not in OPERATIONS
    if own and (kernel.operation, REFERENCE) not in offered:
        yield f"no operation {kernel.operation!r} in the core, wanted a variant {REFERENCE!r} beside it: its reference"
    score: Any = kernel.score()
    value: Any = getattr(score, "value", None)
    if not isinstance(score, Score) or type(value) is not int:
        yield f"score() gave {score!r:.60}, wanted a Score(whole number, why)"
    elif not score.why.strip():
        yield "score() does not say why"
    elif kernel.variant == REFERENCE and score.value != 1:
        yield f"the score of a reference is {score.value}, wanted 1"
    if kernel.supports is not None and not isinstance(kernel.supports(torch.zeros(1)), bool):
        yield "supports(tensor) gave something else than true or false"
    if own and kernel.variant == REFERENCE and kernel.form is not None:
        form = load_object(kernel.form, what="form", provider=subject.spec.name)
        if not isinstance(form, Form):
            yield f"its form is {type(form).__name__}, wanted a Form"


def commands(subject: Subject) -> Iterator[Finding]:
    """One finding for each subcommand."""
    function = subject.hooks.get("dsx_commands")
    listed = Watch(subject.journal).ask("dsx_commands", function, {}) if function else ()
    for command in listed:
        check = f"command {command.name}"
        if subject.journal.may(check):
            watch = Watch(subject.journal)
            watch.call(check, _judge_command, command, subject, watch)
            problems = [trouble.what for trouble in watch.take()]
            yield judged(
                AREA, check, problems, good="it can be loaded", remedy="name a Typer application or a function"
            )
    if function and not listed:
        yield ok(AREA, "commands", "none")


def _judge_command(command: Command, subject: Subject, watch: Watch) -> None:
    loaded = _loaded(command.load, f"command {command.name!r}", subject, watch)
    if loaded is not None and not isinstance(loaded, typer.Typer) and not callable(loaded):
        watch.note("command", f"loads {type(loaded).__name__}, wanted a Typer application or a function")
    if not command.summary.strip():
        watch.note("command", "has no summary, which `dsx --help` shows")
