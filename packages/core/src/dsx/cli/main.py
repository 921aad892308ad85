"""The command ``dsx``: the core's subcommands, those of plugins, and errors as one message without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from dsx import __version__
from dsx.cli.lazy import add_command
from dsx.cli.out import fail
from dsx.errors import DsxError, PluginError
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.plugin.types import Command

CORE_COMMANDS = (
    Command("run", "dsx.cli.run:run", "start a training script on several ranks"),
    Command("config", "dsx.cli.config:app", "check, explain or describe a configuration"),
    Command("plugins", "dsx.cli.plugins:plugins", "list plugins, and what each provides"),
    Command("report", "dsx.cli.report:report", "describe this machine, its kernels and plugins"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``dsx`` with these arguments (those of the process by default), and end the process."""
    try:
        build_app(plugin_manager())(args=list(arguments) if arguments is not None else None, prog_name="dsx")
    except DsxError as error:
        fail(error)
        sys.exit(1)


def build_app(plugins: PluginManager) -> typer.Typer:
    """The Typer application with every subcommand; each is imported when it is called."""
    app = typer.Typer(
        help="Large PyTorch models, trained by a small core and separately installable plugins.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_common)
    owners = {command.name: "the core" for command in CORE_COMMANDS}
    for command in CORE_COMMANDS:
        add_command(app, command, provider="'core'")
    for item in plugins.commands():
        provider = plugins.provider(item.plugin)
        if item.value.name in owners:
            raise PluginError(
                f"command {item.value.name!r} is offered by {owners[item.value.name]} and by {provider}\n"
                f"    what to do: uninstall one of the plugins, or block it with DSX_PLUGINS_BLOCK"
            )
        owners[item.value.name] = provider
        add_command(app, item.value, provider=provider)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _common(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and end."
    ),
) -> None:
    """Options of ``dsx`` itself."""
