"""A subcommand of ``dsx``. This one counts the parameters of a model, part by part, without making any.

Turned on by being there: ``dsx count mypackage.model:make --depth 2``.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import torch
import typer

from dsx.errors import ConfigError
from dsx.plugin import Command, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-command", api=1, summary="dsx count")


def count(
    depth: Annotated[int, typer.Option(min=0, help="How deep to look into the model.")] = 1,
    model: Annotated[str, typer.Argument(help="module:callable that makes a model.")] = "",
) -> None:
    """Print the parameters of each part of a model."""
    module, _, name = model.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"found {model!r} ({error}), wanted module:callable, such as mypackage.model:make") from error
    with torch.device("meta"):
        made: torch.nn.Module = make()
    parts: Counter[str] = Counter()
    for path, param in made.named_parameters():
        parts[".".join(path.split(".")[:-1][:depth]) or "(all)"] += param.numel()
    for part, numel in parts.items():
        typer.echo(f"{numel:>15,}  {part}")
    typer.echo(f"{parts.total():>15,}  in all")


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_commands() -> Iterator[Command]:
    """The command, imported when it is called."""
    yield Command("count", load=f"{__name__}:count", summary="count the parameters of a model")
