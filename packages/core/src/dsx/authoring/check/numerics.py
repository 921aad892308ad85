"""Whether the numbers are right: each component by the test kit's check of its kind, and a training by parity."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

import dsx
from dsx.authoring.check.findings import Finding, not_applicable, ok, wrong
from dsx.authoring.check.setting import ADAM, BASE, GIVEN, SITUATIONS, single_settings
from dsx.authoring.check.subject import Subject, bare, without_clashes
from dsx.authoring.check.watch import Watch
from dsx.config.compose import compose
from dsx.config.training import SchedulerSection
from dsx.errors import ConfigError
from dsx.optim.schedule_driver import make_schedule
from dsx.plugin import CODEC, OPTIMIZER, PARTITIONER, SCHEDULE, STORE, Component, Kernel, Kind
from dsx.plugin.manager import PluginManager
from dsx.registry.registry import Registry
from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import Course, plain, steered

AREA = "numerics"
UPDATES = 3
TOLERANCE = 2e-6
"""The largest difference of any loss, norm or weight between two courses that differ by rounding alone."""

MOST_DRIVERS = 3


class OneVariant:
    """A registry in which an operation has one variant beside its reference."""

    def __init__(self, registry: Registry, variant: str) -> None:
        self._registry = registry
        self._variant = variant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def scores(self, operation: str) -> tuple[tuple[str, Any], ...]:
        """Of this variant and the reference alone."""
        return tuple(pair for pair in self._registry.scores(operation) if pair[0] in (self._variant, "torch"))


def registry_of(subject: Subject) -> Registry:
    """A registry of the core and this plugin."""
    return Registry(subject.manager(Watch(subject.journal)), kernels="")


def held(subject: Subject, check: str, remedy: str, run: Callable[[], Any]) -> Iterator[Finding]:
    """The finding of one check of the kit, which raises AssertionError where the subject breaks a law."""
    if not subject.journal.may(check):
        return
    try:
        run()
    except NeedsParams as error:
        yield not_applicable(AREA, check, f"{error}; give --config FILE that chooses it with params")
    except AssertionError as error:
        yield wrong(AREA, check, str(error) or "it does not hold", remedy)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the subject's own)
        yield wrong(AREA, check, f"raised {type(error).__name__}: {error}", remedy)
    else:
        yield ok(AREA, check, "it keeps every law of its kind")


def variants(subject: Subject) -> Iterator[Finding]:
    """Each kernel variant against its reference."""
    from dsx.testing import check_variants

    registry = registry_of(subject)
    offers = without_clashes(subject.offers)
    for kernel in [offer for offer in offers if isinstance(offer, Kernel) and offer.variant != "torch"]:
        check = f"kernel {kernel.operation}={kernel.variant}"
        score = dict(registry.scores(kernel.operation)).get(kernel.variant)
        if score is None or score.value <= 0:
            yield not_applicable(AREA, check, f"it cannot run here: {score.why if score else 'it has no score'}")
            continue
        one: Any = OneVariant(registry, kernel.variant)
        remedy = "compute what the torch reference computes, within its tensors; refuse the rest with a KernelError"
        yield from held(subject, check, remedy, partial(check_variants, kernel.operation, registry=one))


def _each(subject: Subject, kind: Kind[Any], run: Callable[[str], Any]) -> Iterator[Finding]:
    for offer in without_clashes(subject.offers):
        if isinstance(offer, Component) and offer.kind == kind:
            remedy = f"mend it; in a test of yours: dsx.testing.check_{kind.name}({offer.name!r})"
            yield from held(subject, f"{kind.name} {offer.name}", remedy, partial(run, offer.name))


def optimizers(subject: Subject) -> Iterator[Finding]:
    """Each optimizer by its laws."""
    from dsx.testing import check_optimizer

    registry = registry_of(subject)

    def run(name: str) -> None:
        params = given_params(subject, "optimizer", name)
        required = required_params(registry.get(OPTIMIZER, name)) - set(params or ())
        if required:
            raise NeedsParams(f"it needs {', '.join(sorted(required))}")
        check_optimizer(name, params=params, registry=registry)

    yield from _each(subject, OPTIMIZER, run)


def schedules(subject: Subject) -> Iterator[Finding]:
    """Each schedule by its laws."""
    from dsx.testing import check_schedule

    registry = registry_of(subject)

    def run(name: str) -> None:
        params = given_params(subject, "scheduler", name)
        spec = SchedulerSection(type=name, params=params or {})
        try:
            make_schedule(spec, optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1), registry=registry)
        except ConfigError as error:
            if params is None:
                raise NeedsParams(str(error).splitlines()[0]) from error
        check_schedule(name, params=params, registry=registry)

    yield from _each(subject, SCHEDULE, run)


class NeedsParams(Exception):
    """A component cannot be built without params, and nobody gave any."""


def given_params(subject: Subject, key: str, name: str) -> dict[str, Any] | None:
    """The params with which the author's configuration chooses this component, if it does."""
    section = (subject.config or {}).get(key)
    if not isinstance(section, Mapping) or str(section.get("type", "")).lower() != name.lower():
        return None
    return dict(section.get("params") or {})


def required_params(factory: Any) -> set[str]:
    """Arguments behind the first that have no default."""
    try:
        _, *others = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # no signature to be had, or no argument
        return set()
    named = (param for param in others if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY))
    return {param.name for param in named if param.default is param.empty}


def codecs(subject: Subject) -> Iterator[Finding]:
    """Each codec by its laws."""
    from dsx.testing import check_codec

    registry = registry_of(subject)
    yield from _each(subject, CODEC, lambda name: check_codec(registry.get(CODEC, name)))


def partitioners(subject: Subject) -> Iterator[Finding]:
    """Each partitioner by its laws."""
    from dsx.testing import check_partitioner

    registry = registry_of(subject)
    yield from _each(subject, PARTITIONER, lambda name: check_partitioner(registry.get(PARTITIONER, name)))


def stores(subject: Subject) -> Iterator[Finding]:
    """Each store, with a crash at every step of a save."""
    from dsx.testing import check_store

    registry = registry_of(subject)
    with tempfile.TemporaryDirectory(prefix="dsx-check-store-") as folder:
        yield from _each(subject, STORE, lambda name: check_store(registry.get(STORE, name), folder=folder))


def parity(subject: Subject) -> Iterator[Finding]:
    """A short training with the plugin at its defaults: as plain PyTorch, and as without it."""
    offers_kernels = any(isinstance(offer, Kernel) for offer in subject.offers)
    quiet = Watch(subject.journal)
    without = trained(bare())
    with_it = trained(subject.manager(quiet))
    model = Awkward()
    reference = plain(model, awkward_batch, optimizer=torch.optim.AdamW(model.parameters(), **ADAM), updates=UPDATES)
    remedy = "change nothing of a training that does not name the plugin: not the model, not the data, not the kernels"
    gap, allowed = with_it.apart(without), TOLERANCE if offers_kernels else 0.0
    if gap <= allowed:
        yield ok(AREA, "training without it", f"the same {UPDATES} updates, {gap:g} apart")
    else:
        found = f"{UPDATES} updates with and without it are {gap:g} apart, wanted {allowed:g}"
        yield wrong(AREA, "training without it", found, remedy)
    gap = with_it.apart(reference)
    if gap <= TOLERANCE:
        yield ok(AREA, "plain PyTorch", f"the same {UPDATES} updates, {gap:g} apart")
    else:
        found = f"{UPDATES} updates are {gap:g} from plain PyTorch's, wanted at most {TOLERANCE:g}"
        yield wrong(AREA, "plain PyTorch", found, remedy)


def trained(plugins: PluginManager) -> Course:
    """A few updates of the awkward model under these plugins."""
    torch.manual_seed(0)
    with dsx.initialize(model=Awkward(), config=dict(BASE), plugins=plugins)[0] as engine:
        return steered(engine, awkward_batch, updates=UPDATES)


def driver(subject: Subject) -> Iterator[Finding]:
    """Where the plugin can own the driver: the law of parity on two ranks, in the settings that make it the owner."""
    from dsx.testing import check_driver

    if "dsx_make_driver" not in subject.hooks:
        return
    found = list(owning(subject))[:MOST_DRIVERS]
    if not found:
        yield not_applicable(AREA, "driver", "no single setting of its sections claims the driver; give --config FILE")
    plugins = () if subject.target.distribution else (subject.target.module,)
    for title, config in found:
        remedy = "keep the law of parity; in a test of yours: dsx.testing.check_driver(config)"
        yield from held(
            subject,
            f"driver with {title}",
            remedy,
            partial(check_driver, {**BASE, **config}, plugins=plugins, world=2, updates=UPDATES),
        )


def owning(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """(its words, a configuration) in which one setting makes the plugin claim the driver."""
    claims = subject.hooks.get("dsx_claims")
    if claims is None:
        return
    watch = Watch(subject.journal, strict=False)
    whole = compose(subject.manager(watch))
    world, facts = SITUATIONS[1]
    tried = [(GIVEN, dict(subject.config))] if subject.config is not None else []
    for title, config in [*tried, *single_settings(subject)]:
        try:
            loaded = whole.model_validate({**BASE, **config})
            said = watch.ask("dsx_claims", claims, {"config": loaded, "world": world, "facts": facts})
        except Exception:  # noqa: BLE001  (a value that is not taken)
            continue
        if any(claim.verb == "sets" and claim.resource == "driver" for claim in said):
            yield title, config
