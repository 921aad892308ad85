"""Subcommands that are imported when they are called, so that ``dsx --help`` loads none of them."""

from __future__ import annotations

from typing import Any

import typer

from dsx.plugin.types import Command
from dsx.registry.loading import load_object

# The stand-in takes every argument, ``--help`` too, and hands it to the command behind it.
_ALL = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def add_command(app: typer.Typer, command: Command, *, provider: str) -> None:
    """Add a stand-in that loads the command, a Typer application or a function, and passes its arguments on."""

    def stand_in(context: typer.Context) -> None:
        target = load_object(command.load, what=f"command {command.name!r}", provider=provider)
        as_app(target)(args=list(context.args), prog_name=f"dsx {command.name}")

    app.command(command.name, help=command.summary, context_settings=_ALL, add_help_option=False)(stand_in)


def as_app(target: Any) -> typer.Typer:
    """The target itself if it is an application, else one whose only command it is.

    Options of such a command stand before its first argument; what follows is left to its last parameter.
    """
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command(context_settings=settings)(target)
    return app
