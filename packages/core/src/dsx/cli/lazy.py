"""Subcommands that are imported when they are called, so that ``dsx --help`` loads none of them."""

from __future__ import annotations

from typing import Any

import typer

from dsx.errors import DsxError
from dsx.plugin.clashes import Clash, raise_clashes
from dsx.plugin.naming import Who, add_note, naming
from dsx.plugin.types import Command
from dsx.registry.loading import load_object

# The stand-in takes every argument, ``--help`` too, and hands it to the command behind it.
_ALL = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def add_command(app: typer.Typer, command: Command, *, provider: str, block: str = "") -> None:
    """Add a stand-in that loads the command, a Typer application or a function, and passes its arguments on."""
    who, what = Who(provider, block), f"command {command.name!r}"

    def stand_in(context: typer.Context) -> None:
        target = load_object(command.load, what=what, provider=provider, block=block)
        if not callable(target):
            raise who.wrong(what, found=type(target).__name__, wanted="a Typer application or a function")
        with naming(who, f"making {what} of it"):
            ready = typer.main.get_command(as_app(target))
        try:
            ready(args=list(context.args), prog_name=f"dsx {command.name}")
        except (typer.Exit, DsxError):
            raise
        except Exception as error:
            add_note(error, who, what)
            raise

    app.command(command.name, help=command.summary, context_settings=_ALL, add_help_option=False)(stand_in)


def add_refusal(app: typer.Typer, name: str, clash: Clash) -> None:
    """Add a stand-in for a command with two owners: who calls it is told of both."""

    def stand_in() -> None:
        raise_clashes([clash], what="names")

    app.command(name, help=f"Refused: {clash}", context_settings=_ALL, add_help_option=False)(stand_in)


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
