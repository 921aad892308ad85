"""Reads a configuration: form, keys, types, ranges, in this order, and every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dsx.config.auto import AutoType
from dsx.config.compose import compose
from dsx.config.keys import is_inert, key_problems
from dsx.config.read import read_source
from dsx.config.root import DsxConfig, item_class, section_class
from dsx.config.section import key_of, keys_of, plain_kinds
from dsx.config.wording import found, wanted
from dsx.errors import ConfigError
from dsx.plugin.catalog import GONE, SECTIONS

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager


def load_config(source: Mapping[str, Any] | str | Path | DsxConfig | None, *, plugins: PluginManager) -> DsxConfig:
    """The checked configuration from a mapping, a path, JSON text or base64. Raises ConfigError with all problems.

    A DsxConfig is taken as it is. Sections of plugins that are not installed are refused unless they ask for nothing.
    """
    if isinstance(source, DsxConfig):
        return source
    raw = read_source(source)
    model = compose(plugins)
    problems = list(key_problems(raw, model, plugins=plugins))
    config: DsxConfig | None = None
    try:
        config = model.model_validate(_cleaned(raw, model))
    except ValidationError as error:
        problems += _value_problems(error, raw, model)
    if config is not None:
        problems += cross_problems(config)
    if problems or config is None:
        raise problem_list(problems)
    return config


def problem_list(problems: list[str]) -> ConfigError:
    """One ConfigError that shows every problem."""
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigError(f"this configuration has {count}:" + "".join(f"\n  - {_indented(item)}" for item in problems))


def cross_problems(config: DsxConfig) -> Iterator[str]:
    """What single fields cannot see: pairs of keys that exclude or need each other."""
    active = [name for name in ("fp16", "bf16", "torch_autocast") if getattr(config, name).enabled is True]
    if len(active) > 1:
        first, second = active[:2]
        yield (
            f"{first}.enabled and {second}.enabled: found both true, wanted at most one of them\n"
            f"    what to do: set one to false; bf16 needs no loss scale and is the safer choice where it is fast"
        )
    if config.bf16.bf16_optimizer_states and not config.bf16.bf16_master_weights_and_grads:
        yield (
            "bf16.bf16_optimizer_states: found true, wanted together with bf16.bf16_master_weights_and_grads=true\n"
            "    what to do: set both, or neither"
        )
    if config.gradient_codec is not None and config.communication_data_type is not None:
        yield (
            f"gradient_codec and communication_data_type: found {config.gradient_codec!r} and "
            f"{config.communication_data_type!r}, wanted at most one of them\n"
            "    what to do: keep gradient_codec for fewer bytes, communication_data_type for a plain number format"
        )
    recompute = config.activation_checkpointing
    if recompute.contiguous_memory_optimization and recompute.number_checkpoints is None:
        yield (
            "activation_checkpointing.contiguous_memory_optimization: found true without number_checkpoints, "
            "wanted the number of checkpointed blocks\n    what to do: set activation_checkpointing.number_checkpoints"
        )
    if config.optimizer is not None and "max_grad_norm" in config.optimizer.params:
        yield (
            f"optimizer.params.max_grad_norm: found {config.optimizer.params['max_grad_norm']}, wanted no such key\n"
            "    what to do: set the top-level key gradient_clipping instead"
        )


def _indented(text: str) -> str:
    return text.replace("\n    ", "\n      ")


def _cleaned(raw: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The data without keys that `key_problems` has already named, and without sections that are null."""
    keys = keys_of(model)
    cleaned: dict[str, Any] = {}
    fields: set[str] = set()
    for key, value in raw.items():
        if key not in keys or keys[key] in fields:
            continue
        fields.add(keys[key])
        inner = section_class(model, keys[key])
        if inner is not None and isinstance(value, Mapping):
            value = _cleaned(value, inner)
        elif inner is not None and value is None and type(None) not in plain_kinds(_annotation(model, keys[key])):
            continue
        each = item_class(model, keys[key])
        if each is not None and isinstance(value, list | tuple):
            value = [_cleaned(item, each) if isinstance(item, Mapping) else item for item in value]
        cleaned[key] = value
    return cleaned


def _annotation(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[name].annotation


def _value_problems(error: ValidationError, raw: Mapping[str, Any], model: type[DsxConfig]) -> Iterator[str]:
    located = [(item, *_locate(item["loc"], raw, model)) for item in error.errors(include_url=False)]
    paths = [path for _, path, *_ in located]
    seen: set[str] = set()
    for item, path, value, owner, name in located:
        # One value that fits no branch of a union is one problem, however many branches there are.
        if path in seen or any(other.startswith((path + ".", path + "[")) for other in paths):
            continue
        seen.add(path)
        yield _value_problem(item, path, value, owner.model_fields[name] if name else None)


def _value_problem(item: ErrorDetails, path: str, value: Any, field: FieldInfo | None) -> str:
    if item["type"] == "missing":
        return f"{path}: not given, wanted {wanted(field) if field else 'a value'}\n    what to do: add it"
    # A section's own validator speaks for itself; a wrong type or range is put into words here.
    own = item["type"] in ("value_error", "assertion_error")
    takes = item["msg"].removeprefix("Value error, ") if own or field is None else f"wanted {wanted(field)}"
    remedy = "correct it" if field is None or field.is_required() else f"correct it, or remove it{_default(field)}"
    return f"{path}: found {found(value)}, {takes}\n    what to do: {remedy}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, AutoType):
        return ' for the default "auto"'
    plain = isinstance(value, bool | int | float | str)
    return f" for the default {found(value)}" if plain else ""


def _locate(location: tuple[int | str, ...], raw: Any, model: type[BaseModel]) -> tuple[str, Any, type[BaseModel], str]:
    """Path as the user wrote it, the value there, and the field. Parts that name a branch of a union are left out."""
    path, value, owner, name = "", raw, model, ""
    current: type[BaseModel] | None = model
    for position, part in enumerate(location):
        keys = keys_of(current) if current is not None else {}
        if part in keys:
            assert current is not None
            owner, name = current, keys[str(part)]
            written = next(
                (key for key in _spellings(current, name) if isinstance(value, Mapping) and key in value), part
            )
            value = value.get(written) if isinstance(value, Mapping) else None
            path += f".{written}" if path else str(written)
            current = section_class(owner, name) or item_class(owner, name)
        elif isinstance(value, Mapping) and part in value:
            value, path = value[part], f"{path}.{part}"
        elif isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            value, path = value[part], f"{path}[{part}]"
        elif position == len(location) - 1 and isinstance(part, str) and not path:
            path = part
    return path or "the configuration", value, owner, name


def _spellings(model: type[BaseModel], name: str) -> list[str]:
    return [key_of(model, name), *(key for key, field in keys_of(model).items() if field == name)]


def unused_keys(raw: Mapping[str, Any], model: type[DsxConfig]) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) for each top-level key that was accepted only because it asks for nothing."""
    for key, value in raw.items():
        if key in keys_of(model) or not is_inert(value):
            continue
        if key in GONE:
            yield key, value, f"asks for nothing; {GONE[key].why}"
        elif key in SECTIONS:
            yield key, value, f"asks for nothing; {SECTIONS[key]} would bring it"
