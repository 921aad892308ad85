"""The command ``dsx``: the core's subcommands, those of plugins, and errors as one message without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from dsx import __version__
from dsx.cli.choice_of_plugins import Plugins, as_before, leading, use
from dsx.cli.lazy import add_command, add_refusal
from dsx.cli.out import fail, told_once
from dsx.errors import DsxError
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.plugin.types import Command

CORE_COMMANDS = (
    Command("run", "dsx.cli.run:run", "start a training script on several ranks"),
    Command("config", "dsx.cli.config:app", "check, explain or describe a configuration"),
    Command("plugin", "dsx.cli.authoring:app", "write a plugin, or check one"),
    Command("plugins", "dsx.cli.plugins:plugins", "list plugins, and what each provides"),
    Command("report", "dsx.cli.report:report", "describe this machine, its kernels and plugins"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``dsx`` with these arguments (those of the process by default), and end the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with as_before(), told_once():
            modules = use(leading(given))
            build_app(_plugins([text for text in given if text not in modules]))(args=given, prog_name="dsx")
    except DsxError as error:
        fail(error)
        sys.exit(1)


def build_app(plugins: PluginManager) -> typer.Typer:
    """The Typer application with every subcommand; each is imported when it is called.

    A name with two owners is told of in the help. A command with two is refused when it is called, and no other.
    """
    core = tuple(command.name for command in CORE_COMMANDS)
    clashes = plugins.clashes(commands=core)
    app = typer.Typer(
        help="Large PyTorch models, trained by a small core and separately installable plugins.",
        epilog="  ".join(f"Clash: {clash}; what to do: {clash.remedy}." for clash in clashes) or None,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_common)
    for command in CORE_COMMANDS:
        add_command(app, command, provider="'core'")
    refused = {offer.name: clash for clash in clashes for offer in clash.offers if isinstance(offer, Command)}
    for item in plugins.commands():
        if item.value.name not in refused:
            who = plugins.who(item.plugin)
            add_command(app, item.value, provider=who.provider, block=who.block)
    for name, clash in refused.items():
        if name not in core:  # else the core's stays, so that a plugin cannot take away what tells of it
            add_refusal(app, name, clash)
    return app


def _plugins(words: Sequence[str]) -> PluginManager:
    """All plugins; none for ``dsx plugin``, which must run whatever one of them does to a process that imports it."""
    subcommand = next((word for word in words if not word.startswith("-")), "")
    return PluginManager([]) if subcommand == "plugin" else plugin_manager(clashes="show")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _common(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and end."
    ),
    plugin: Plugins = None,
) -> None:
    """Options of ``dsx`` itself."""
