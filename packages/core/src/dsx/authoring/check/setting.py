"""The situations in which a plugin is asked: a small training with default settings, on one rank and on two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from dsx.authoring.check.subject import Subject, without_clashes
from dsx.authoring.check.watch import Watch
from dsx.config.load import load_config
from dsx.config.root import DsxConfig
from dsx.config.section import key_of, plain_kinds
from dsx.errors import DsxError
from dsx.planning.make import make_plan
from dsx.planning.plan import Plan
from dsx.plugin import Component, Facts, World
from dsx.testing.awkward import MICRO

ADAM: Mapping[str, Any] = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}
BASE: Mapping[str, Any] = {
    "train_micro_batch_size_per_gpu": MICRO,
    "optimizer": {"type": "AdamW", "params": dict(ADAM)},
    "log_level": "error",
}
"""A configuration that says nothing of any plugin."""

SITUATIONS = (
    (World(), Facts()),
    (World(rank=1, size=2, local_rank=1, local_size=2), Facts(parameters=1000, largest_parameter=100)),
)
"""Who asks, and what is known then of model and machine."""


def default_config(subject: Subject, *, watch: Watch) -> DsxConfig:
    """The configuration of somebody who has the plugin and does not use it; the core's alone where it has none."""
    try:
        return load_config(BASE, plugins=subject.manager(watch))
    except (Exception, SystemExit):  # noqa: BLE001  (the steps on sections say why)
        return DsxConfig.model_validate(BASE)


def default_plan(subject: Subject, *, watch: Watch, situation: int = 0) -> Plan | DsxError:
    """The plan of that configuration, or why there is none."""
    world, facts = SITUATIONS[situation]
    config = default_config(subject, watch=watch)
    try:
        return make_plan(config, world=world, facts=facts, plugins=subject.manager(watch))
    except DsxError as error:
        return error


GIVEN = "the configuration given"
MOST_SETTINGS = 12


def switched_on(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """(its name, a configuration) that uses the plugin: its sections' own switch, each component, the author's file."""
    on = {
        key: {"enabled": True}
        for key, model in subject.spec.sections.items()
        if "enabled" in model.model_fields and model.model_fields["enabled"].annotation is bool
    }
    if on:
        yield ", ".join(f"{key}.enabled=true" for key in on), {**BASE, **on}
    for offer in without_clashes(subject.offers):
        if isinstance(offer, Component) and offer.kind.name in CHOSEN:
            yield f"{offer.kind.name} {offer.name}", {**BASE, **CHOSEN[offer.kind.name](offer.name)}
    if subject.config is not None:
        yield GIVEN, {**BASE, **subject.config}


CHOSEN: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "optimizer": lambda name: {"optimizer": {"type": name}},
    "schedule": lambda name: {"scheduler": {"type": name}},
    "store": lambda name: {"checkpoint": {"store": name}},
    "monitor": lambda name: {"monitors": [{"type": name}]},
    "codec": lambda name: {"gradient_codec": name},
    "activation_checkpoint": lambda name: {"activation_checkpointing": {"modules": ["Block"], "method": name}},
    "partitioner": lambda name: {
        "activation_checkpointing": {"modules": ["Block"], "number_checkpoints": 1, "partitioner": name}
    },
}
"""Kind -> the part of a configuration that chooses a component of it by name."""


def single_settings(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """(its name, the section) for each value of each field that says itself which values it takes."""
    for key, model in subject.spec.sections.items():
        for name, info in model.model_fields.items():
            kinds = plain_kinds(info.annotation)
            values: list[Any] = [True] if bool in kinds else []
            values += [value for value in get_args(info.annotation) if isinstance(value, int | str)]
            values += [1, 2] if int in kinds and len(values) < 2 else []
            for value in dict.fromkeys(values):
                yield f"{key}.{key_of(model, name)}={value!r}", {key: {key_of(model, name): value}}
