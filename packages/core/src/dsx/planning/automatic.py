"""Replaces every ``"auto"``: the core answers for its own keys, plugins for theirs, and one left over is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from dsx.config.auto import AutoType
from dsx.config.load import problem_list
from dsx.config.root import DsxConfig, canonical
from dsx.config.section import key_of
from dsx.errors import ConfigError, PluginError
from dsx.plugin.manager import PluginManager, Tagged
from dsx.plugin.naming import REMEDY
from dsx.plugin.types import Facts, Resolved, World

CORE = "core"


def resolve(
    config: DsxConfig, *, batch: Sequence[Resolved], world: World, facts: Facts, plugins: PluginManager
) -> tuple[DsxConfig, tuple[Resolved, ...]]:
    """The configuration without any ``"auto"``, and what took each one's place.

    Raises ConfigError where a key has no resolver, PluginError where a resolver speaks for a key that it must not.
    """
    answers = [Tagged(CORE, item) for item in (*batch, *_core_values(config, facts))]
    config = _applied(config, answers, plugins)
    # Plugins see the core's values, so that theirs may follow from batch sizes and precision.
    theirs = plugins.resolve(config, world, facts)
    config = _applied(config, theirs, plugins)
    left = list(autos_of(config))
    if left:
        raise problem_list([_unresolved(path, plugins) for path in left])
    resolved = [item.value for item in (*answers, *theirs)]
    return config, tuple(sorted(resolved, key=lambda item: item.key))


def autos_of(section: BaseModel, prefix: str = "") -> Iterator[str]:
    """Path, as it is written in the file, of every ``"auto"`` that still stands."""
    for name in type(section).model_fields:
        yield from _autos(getattr(section, name), prefix + key_of(type(section), name))


def _core_values(config: DsxConfig, facts: Facts) -> Iterator[Resolved]:
    """The core's own resolver, for all its keys but the batch sizes."""
    if isinstance(config.gradient_clipping, AutoType):
        yield Resolved("gradient_clipping", 0.0, "no clipping unless a norm is named")
    if isinstance(config.fp16.enabled, AutoType):
        yield Resolved("fp16.enabled", False, "fp16 needs a loss scale, so it is never chosen unasked")
    if isinstance(config.bf16.enabled, AutoType):
        yield Resolved("bf16.enabled", *_bf16(config, facts))


def _bf16(config: DsxConfig, facts: Facts) -> tuple[bool, str]:
    if config.fp16.enabled is True or config.torch_autocast.enabled:
        return False, "another precision is enabled"
    if facts.native_bf16:
        return True, "this processor multiplies bf16 without converting"
    return False, "this processor would convert every bf16 multiplication to fp32"


def _autos(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, AutoType):
        yield path
    elif isinstance(value, BaseModel):
        yield from autos_of(value, path + ".")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _autos(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _autos(item, f"{path}[{index}]")


def _applied(config: DsxConfig, answers: Sequence[Tagged[Resolved]], plugins: PluginManager) -> DsxConfig:
    """The configuration with these answers. Each must be for a key that stands at ``"auto"``, and only one for each."""
    model = type(config)
    open_keys = {canonical(model, path) for path in autos_of(config)}
    seen: dict[str, str] = {}
    for item in answers:
        key = canonical(model, item.value.key)
        who = plugins.provider(item.plugin)
        if key in seen:
            raise PluginError(
                f"{item.value.key} is resolved by {seen[key]} and by {who}: wanted one resolver\n"
                f'    what to do: give a value instead of "auto"'
            )
        owner = _owner(key, plugins)
        if item.plugin not in (CORE, owner):
            of = f"a key of plugin {plugins.provider(owner)}" if owner else "no key of a plugin"
            own = ", ".join(name for name, (plugin, _) in plugins.sections.items() if plugin == item.plugin)
            raise plugins.who(item.plugin).fault(
                f"resolves {item.value.key}, which is {of}: wanted keys of its own sections only, {own or 'none'}"
            )
        if key not in open_keys:
            raise plugins.who(item.plugin).fault(
                f'resolves {item.value.key}, which does not stand at "auto": found a value that the user or another '
                f"plugin gave, wanted a Resolved only where the key is AUTO"
            )
        seen[key] = who
        try:
            config = config.with_values({key: item.value.value})
        except ConfigError as error:
            reason = str(error).partition(REMEDY)[0]
            raise plugins.who(item.plugin).fault(f"gives a value that cannot stand there: {reason}") from error
    return config


def _owner(key: str, plugins: PluginManager) -> str:
    """The plugin that owns the section of a key; nothing for the core's keys and for those that do not exist."""
    return plugins.sections.get(key.partition(".")[0], ("",))[0]


def _unresolved(path: str, plugins: PluginManager) -> str:
    top = path.split(".")[0]
    if top in plugins.sections:
        resolver = f"dsx_resolve of plugin {plugins.provider(plugins.sections[top][0])}"
    elif top in ("optimizer", "scheduler"):
        resolver = "a trainer that fills the key in before dsx reads it, such as that of transformers"
    else:
        resolver = "one in the core"
    return (
        f'{path}: found "auto", wanted a value; the resolver that is missing: {resolver}\n    what to do: give a value'
    )
