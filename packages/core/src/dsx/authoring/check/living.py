"""A whole engine life with the plugin: built, two updates, save, load, report, teardown; every fault by its place."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

import dsx
from dsx.authoring.check.findings import Finding, judged, not_applicable, wrong
from dsx.authoring.check.setting import BASE, GIVEN, MOST_SETTINGS, default_plan, single_settings, switched_on
from dsx.authoring.check.subject import Subject
from dsx.authoring.check.watch import Watch
from dsx.errors import DsxError
from dsx.kernels import OPERATIONS
from dsx.plugin import Kernel
from dsx.plugin.manager import PluginManager
from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import steered

AREA = "failures"
DEFAULTS = "at its defaults"
REMEDY = "mend it: an error here ends the user's training, or its save"


@dataclass(frozen=True, slots=True)
class Left:
    """What an engine that has lived and been closed left on the user's model."""

    hooks: tuple[str, ...]
    references: tuple[weakref.ref[Any], ...]
    """Of the engine and the model, which nobody needs any more."""


def lives(subject: Subject) -> Iterator[Finding]:
    """With its sections at their defaults, and switched on; one finding for each place that fails."""
    plan = default_plan(subject, watch=Watch(subject.journal))
    if isinstance(plan, DsxError):
        yield not_applicable(AREA, "engine life", "with the default configuration there is no plan")
        return
    yield from _life(subject, DEFAULTS, BASE)
    for title, config in switched_on(subject):
        yield from _life(subject, title, config)
    yield from _settings(subject)


def _life(subject: Subject, title: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    check = f"engine life, {title}"
    if not subject.journal.may(check):
        return
    watch, told = _lived(subject, config)
    yield from _troubles(watch)
    if isinstance(told, DsxError) and title not in (DEFAULTS, GIVEN):
        yield not_applicable(AREA, check, f"refused: {str(told).splitlines()[-1].strip()}")
        return
    problems = [f"raised {type(told).__name__}: {told}"] if told is not None else []
    good = "built, 3 updates, save, load, report, closed"
    yield judged(AREA, check, problems, good=good, remedy=REMEDY)


def _settings(subject: Subject) -> Iterator[Finding]:
    """A life with each of the first single settings of its sections; a refusal is an answer."""
    check, tried, refused = "engine life, single settings", 0, 0
    problems: list[str] = []
    for title, section in islice(single_settings(subject), MOST_SETTINGS):
        if subject.journal.may(f"engine life, {title}"):
            watch, told = _lived(subject, {**BASE, **section})
            yield from _troubles(watch)
            tried, refused = tried + 1, refused + isinstance(told, DsxError)
            if told is not None and not isinstance(told, DsxError):
                problems.append(f"with {title}: raised {type(told).__name__}: {told}")
    if tried:
        good = f"{tried - refused} lives to the end, {refused} refused"
        yield judged(AREA, check, problems, good=good, remedy=REMEDY)


def _lived(subject: Subject, config: Mapping[str, Any]) -> tuple[Watch, BaseException | None]:
    """One life under watch, and what ended it. What is printed, and what is refused, is a fault in default ones."""
    watch = Watch(subject.journal, strict=config is BASE, silent=config is BASE)
    try:
        with reference_kernels(subject):
            live(config, subject.manager(watch))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (what is looked for)
        return watch, error
    return watch, None


def _troubles(watch: Watch) -> Iterator[Finding]:
    for trouble in watch.take():
        where = f"hook {trouble.where}" if trouble.where.startswith("dsx_") else trouble.where
        yield wrong(AREA, where, trouble.what, REMEDY)


def live(config: Mapping[str, Any], plugins: PluginManager) -> Left:
    """One engine from its building to its end, always with the same random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    model = Awkward()
    engine = dsx.initialize(model=model, config=dict(config), plugins=plugins)[0]
    try:
        with tempfile.TemporaryDirectory(prefix="dsx-check-life-") as folder:
            steered(engine, awkward_batch, updates=2)
            engine.save_checkpoint(folder)
            engine.load_checkpoint(folder)
            steered(engine, awkward_batch, updates=1)
            plugins.report()
    finally:
        engine.close()
    return Left(tuple(hooks_on(model)), (weakref.ref(engine), weakref.ref(model)))


def hooks_on(model: nn.Module) -> Iterator[str]:
    """Every hook on a module or parameter, and every method that was replaced."""
    for name, module in model.named_modules():
        place = name or "the model"
        for attribute, value in vars(module).items():
            if attribute.startswith("_") and attribute.endswith(("hooks", "hooks_with_kwargs")) and value:
                yield f"{place}.{attribute}: {', '.join(_named(hook) for hook in dict(value).values())}"
            if attribute == "forward":
                yield f"{place}.forward was replaced by {_named(value)}"
    for name, param in model.named_parameters():
        for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if getattr(param, attribute, None):
                yield f"parameter {name} has {attribute}"


def _named(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))


@contextlib.contextmanager
def reference_kernels(subject: Subject) -> Iterator[None]:
    """The references of those of the core's operations that the plugin has variants of: its numbers are not judged."""
    operations = {offer.operation for offer in subject.offers if isinstance(offer, Kernel)} & set(OPERATIONS)
    before = os.environ.get("DSX_KERNELS")
    os.environ["DSX_KERNELS"] = ",".join(f"{operation}=torch" for operation in sorted(operations))
    try:
        yield
    finally:
        if before is None:
            del os.environ["DSX_KERNELS"]
        else:
            os.environ["DSX_KERNELS"] = before
