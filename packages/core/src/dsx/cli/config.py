"""``dsx config``: check a file, explain every key of it, or write the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dsx.accelerator.base import choose
from dsx.cli.choice_of_plugins import Plugins
from dsx.cli.out import fail, table
from dsx.config.explain import Row, explain
from dsx.config.load import load_config
from dsx.config.read import read_source
from dsx.config.schema import json_schema
from dsx.errors import DsxError
from dsx.planning.make import make_plan
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.plugin.types import Facts, World
from dsx.registry.registry import Registry

app = typer.Typer(
    help="Check, explain or describe a configuration.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Source = Annotated[str, typer.Argument(metavar="FILE", help="A JSON file, JSON text, or JSON in url-safe base64.")]
Ranks = Annotated[int | None, typer.Option("--ranks", min=1, help="Plan for so many ranks as well.")]


@app.command("check")
def check(file: Source, ranks: Ranks = None, plugin: Plugins = None) -> None:
    """Read a configuration and, with --ranks, plan it; every problem is shown, and the exit status is 1."""
    plugins = plugin_manager()
    config = load_config(file, plugins=plugins)
    if ranks is None:
        typer.echo("the configuration can be read; add --ranks N to see whether it can run")
        return
    typer.echo(make_plan(config, world=World(size=ranks), facts=_facts(plugins), plugins=plugins).describe())


@app.command("explain")
def explain_command(
    file: Source,
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="How many ranks to plan for.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="Show keys that stand at their defaults as well.")] = False,
    plugin: Plugins = None,
) -> None:
    """Say what each key holds, where that comes from and why, and where DeepSpeed does otherwise."""
    plugins = plugin_manager()
    raw = read_source(file)
    config = load_config(raw, plugins=plugins)
    try:
        plan = make_plan(config, world=World(size=ranks), facts=_facts(plugins), plugins=plugins)
    except DsxError as error:
        _show(explain(config, raw=raw), every=every)
        fail(error)
        raise typer.Exit(1) from error
    _show(explain(plan.config, resolved=plan.resolved, raw=raw), every=every)


@app.command("schema")
def schema(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to write it; stdout if left out.")] = None,
    plugin: Plugins = None,
) -> None:
    """Write the JSON schema of the configuration that the installed plugins read."""
    text = json.dumps(json_schema(plugin_manager()), indent=2, ensure_ascii=False)
    if file is None:
        typer.echo(text)
    else:
        file.write_text(text + "\n", encoding="utf-8")


def _facts(plugins: PluginManager) -> Facts:
    """What is known of this machine; of the model nothing is."""
    accelerator = choose(registry=Registry(plugins))
    return Facts(device=accelerator.device_type, native_bf16=accelerator.native_bf16())


def _show(rows: tuple[Row, ...], *, every: bool) -> None:
    shown = [row for row in rows if every or row.source != "default" or row.deepspeed]
    table(
        "configuration",
        ("key", "value", "source", "why", "DeepSpeed"),
        ((row.key, row.value, row.source, row.why, row.deepspeed) for row in shown),
    )
    if not every:
        typer.echo(f"{len(rows) - len(shown)} keys at their defaults are not shown; --all shows them")
