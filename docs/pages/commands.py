"""The page of commands: every subcommand of ``dsx`` with its arguments and options, read from its function."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from dsx.cli import main
from dsx.plugin.types import Command
from dsx.registry.loading import load_object
from pages.ours import our_plugins
from pages.spelling import cell, in_markdown, shown

HEAD = """# Every command

What `dsx --help` and the help of each subcommand say, with the plugins of this repository.
"""
KINDS = {int: "whole number", float: "number", str: "text", Path: "path"}


def info_of(parameter: inspect.Parameter, annotation: Any) -> tuple[OptionInfo | ArgumentInfo | None, Any, Any]:
    """(what typer is told, the plain type, the default) of one parameter of a command."""
    default: Any = None if parameter.default is parameter.empty else parameter.default
    told = [item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, OptionInfo | ArgumentInfo)]
    plain = typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    if isinstance(default, OptionInfo | ArgumentInfo):
        return default, plain, None if default.default is ... else default.default
    return (told[0] if told else None), plain, default


def flags_of(told: OptionInfo | ArgumentInfo | None, name: str) -> list[str]:
    """How an option is written, the long form first. Within ``Annotated`` the first flag stands as the default."""
    declared = [*(getattr(told, "param_decls", None) or ())]
    first = getattr(told, "default", None)
    if isinstance(first, str) and first.startswith("-"):
        declared.insert(0, first)
    return sorted(declared or [f"--{name.replace('_', '-')}"], key=lambda flag: -len(flag))


def kind_of(plain: Any) -> str:
    """What is given for an option, in a word."""
    if typing.get_origin(plain) in (typing.Union, types.UnionType):
        return kind_of(next(part for part in typing.get_args(plain) if part is not type(None)))
    if typing.get_origin(plain) in (list, tuple):
        return kind_of(typing.get_args(plain)[0])
    if typing.get_origin(plain) is typing.Literal:
        return " or ".join(str(value) for value in typing.get_args(plain))
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        return " or ".join(str(member.value) for member in plain)
    return KINDS.get(plain, getattr(plain, "__name__", str(plain)))


def rows_of(function: Any) -> Iterator[str]:
    """One row of a table for each argument and option."""
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        told, plain, default = info_of(parameter, hints.get(name, str))
        if plain is typer.Context or getattr(told, "hidden", False):
            continue
        required = parameter.default is parameter.empty
        if isinstance(told, ArgumentInfo) or (told is None and required):
            written = getattr(told, "metavar", None) or name.upper()
            given = written if required else f"[{written}]"
        else:
            given = ", ".join(flags_of(told, name))
            if plain is not bool:
                given += f" {getattr(told, 'metavar', None) or f'<{kind_of(plain)}>'}"
        text = in_markdown(getattr(told, "help", None) or "")
        if default not in (None, False, "", (), []) and "default" not in text:
            text += f" [default: {default.as_posix() if isinstance(default, Path) else shown(default)}]"
        yield f"| `{given}` | {cell(text)} |\n"


def told_of(title: str, function: Any) -> str:
    """One command: what it does, what it takes."""
    rows = list(rows_of(function))
    # "\f" ends what typer shows of a docstring.
    doc = in_markdown(re.split(r"\f", inspect.getdoc(function) or "")[0]).strip()
    table = f"\n| takes | what it is |\n|---|---|\n{''.join(rows)}" if rows else ""
    return f"\n## {title}\n\n{doc}\n{table}"


def commands_of(title: str, target: Any) -> Iterator[str]:
    """A function, or every command of an application, groups in it as well."""
    if not isinstance(target, typer.Typer):
        yield told_of(title, target)
        return
    for item in target.registered_commands:
        assert item.callback is not None
        name = item.name or item.callback.__name__.lower().replace("_", "-")
        yield told_of(f"{title} {name}", item.callback)
    for group in target.registered_groups:
        assert group.typer_instance is not None
        yield from commands_of(f"{title} {group.name}", group.typer_instance)


def page() -> str:
    """The page of commands."""
    plugins = our_plugins()
    every: list[tuple[str, Command]] = [("'core'", command) for command in main.CORE_COMMANDS]
    every += [(plugins.provider(item.plugin), item.value) for item in plugins.commands()]
    parts = [HEAD, "\n| command | what it does |\n|---|---|\n"]
    parts += [f"| `dsx {command.name}` | {cell(command.summary)} |\n" for _, command in every]
    parts += told_of("dsx", main._common)
    for provider, command in every:
        target = load_object(command.load, what=f"command {command.name!r}", provider=provider)
        parts += commands_of(f"dsx {command.name}", target)
    return "".join(parts)
