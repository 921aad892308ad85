"""Configuration sections: documented, frozen, valid at their defaults, and with a clear no to what they do not take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from dsx.authoring.check.findings import Finding, judged, not_applicable, wrong
from dsx.authoring.check.setting import BASE, SITUATIONS
from dsx.authoring.check.subject import Subject
from dsx.authoring.check.watch import Watch
from dsx.config.compose import compose
from dsx.config.load import load_config
from dsx.config.root import DsxConfig, section_class
from dsx.config.section import key_of
from dsx.errors import ConfigError, DsxError
from dsx.planning.make import make_plan
from dsx.plugin import Section
from dsx.plugin.manager import PluginManager

AREA = "contract"
VALUES = "failures"
ODD: tuple[Any, ...] = (None, True, -1, 1.5, float("nan"), 10**30, "text", "", [], [1], {}, {"a": 1})
"""One value of each kind that a file may hold; most fields take few of them."""


def shapes(subject: Subject) -> Iterator[Finding]:
    """Each section's class, as it stands."""
    sections = _given(subject)
    if not sections:
        yield not_applicable(AREA, "sections", "it owns no section")
    for key, model in sections.items():
        models = [model, *_inner(model)]
        yield judged(
            AREA,
            f"section {key}: documented",
            [f"{part.__name__}.{name} has no docstring" for part in models for name in _silent(part)],
            good=f"{sum(len(part.model_fields) for part in models)} fields",
            remedy="write a docstring under each field: `dsx config explain` and editors show it",
        )
        yield judged(
            AREA,
            f"section {key}: frozen",
            [f"{part.__name__} is not frozen" for part in models if not part.model_config.get("frozen")],
            good="it cannot be changed",
            remedy="leave model_config as dsx.plugin.Section has it",
        )
        yield judged(
            AREA,
            f"section {key}: unknown keys",
            [f"{part.__name__} takes any key" for part in models if part.model_config.get("extra") != "forbid"],
            good="refused",
            remedy="leave model_config as dsx.plugin.Section has it",
        )
        yield judged(
            AREA,
            f"section {key}: defaults",
            _bad_defaults(model),
            good="valid",
            remedy="give each field a default that it takes itself: a section that is not in the file has its defaults",
        )


def _given(subject: Subject) -> dict[str, type[Section]]:
    """Every section class that it says it has, those too that cannot be registered."""
    given: Any = getattr(subject.said, "sections", {})
    pairs = given.items() if hasattr(given, "items") else ()
    return {str(key): model for key, model in pairs if isinstance(model, type) and issubclass(model, Section)}


def _inner(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [section_class(model, name) for name in model.model_fields]
    return [part for part in inner if part is not None]


def _silent(model: type[BaseModel]) -> list[str]:
    return [name for name, info in model.model_fields.items() if not (info.description or "").strip()]


def _bad_defaults(model: type[Section]) -> list[str]:
    required = [name for name, info in model.model_fields.items() if info.is_required()]
    if required:
        return [f"{name} has no default" for name in required]
    try:
        section = model()
    except Exception as error:  # noqa: BLE001  (whatever its validators raise)
        return [f"{model.__name__}() raised {type(error).__name__}: {error}"]
    problems = []
    for name in model.model_fields:
        value = getattr(section, name)
        try:
            model.model_validate({key_of(model, name): value})
        except Exception as error:  # noqa: BLE001
            problems.append(f"{name} does not take its own default {value!r}: {_first(error)}")
    return problems


def values(subject: Subject) -> Iterator[Finding]:
    """Whether every odd value of every field ends in a plan, or in a message for the user; one finding a bad field."""
    watch = Watch(subject.journal, strict=False)
    plugins = subject.manager(watch)
    try:
        whole = compose(plugins)
        whole.model_validate(BASE)
    except Exception as error:  # noqa: BLE001
        yield not_applicable(VALUES, "odd values", f"its sections cannot be composed: {_first(error)}")
        return
    for key, model in subject.spec.sections.items():
        tried = refused = bad = 0
        for name in model.model_fields:
            written = f"{key}.{key_of(model, name)}"
            problems: list[str] = []
            for value in ODD:
                tried += 1
                mark = f"odd value {written} = {value!r}"
                if subject.journal.may(mark):
                    outcome = _tried(whole, key, key_of(model, name), value, plugins=plugins, watch=watch)
                    refused += outcome is None
                    problems += [f"{value!r}: {text}" for text in outcome or ()]
            problems += _worded(plugins, key, key_of(model, name))
            if problems:
                bad += 1
                yield wrong(VALUES, f"odd values of {written}", "; ".join(dict.fromkeys(problems)), REMEDY)
        if not bad:
            good = f"{tried} values, {refused} refused, the others planned or refused by a plan"
            yield judged(VALUES, f"odd values of {key}", [], good=good, remedy="")


REMEDY = (
    "narrow the field's type, or refuse the value where it is used with a dsx.errors.ConfigError that says what was "
    "found, what was wanted and what to do"
)


def _tried(
    whole: type[DsxConfig], key: str, name: str, value: Any, *, plugins: PluginManager, watch: Watch
) -> list[str] | None:
    """What went wrong with one value; ``None`` where the section refused it."""
    try:
        config = whole.model_validate({**BASE, key: {name: value}})
    except ValidationError:
        return None
    except Exception as error:  # noqa: BLE001  (what is looked for)
        return [f"reading it raised {type(error).__name__}: {error}, wanted a ValueError in a validator"]
    world, facts = SITUATIONS[1]
    try:
        make_plan(config, world=world, facts=facts, plugins=plugins)
    except DsxError:
        pass
    except Exception as error:  # noqa: BLE001
        watch.note("planning", f"raised {type(error).__name__}: {error}")
    return [f"{trouble.where} {trouble.what}" for trouble in watch.take()]


def _worded(plugins: PluginManager, key: str, name: str) -> list[str]:
    """Whether dsx can put a refusal of this field into words."""
    try:
        load_config({**BASE, key: {name: ["odd", {"a": 1}]}}, plugins=plugins)
    except ConfigError:
        return []
    except Exception as error:  # noqa: BLE001
        return [f"refusing ['odd', …] raised {type(error).__name__}: {error}, wanted a ConfigError"]
    return []


def _first(error: BaseException) -> str:
    return str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
