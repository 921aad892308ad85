"""``dsx plugin``: write the package of a new plugin, or check one as its users will meet it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dsx.authoring.check import Report, check_plugin
from dsx.authoring.check.findings import COLUMNS
from dsx.cli.choice_of_plugins import Plugins
from dsx.cli.out import table
from dsx.config.read import read_source
from dsx.plugin.local import make_importable, named_in, project_around, working_directory

app = typer.Typer(
    help="Write a plugin, or check one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its distribution, such as acme-metrics.")],
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Where its folder is made.")] = Path(),
) -> None:
    """Write a complete package: typed, tested, found by its entry point once it is installed."""
    from dsx.authoring.new import write_package

    folder = write_package(name, into=into)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    typer.echo(f"{folder}: {len(files)} files")
    for file in files:
        typer.echo(f"  {file.relative_to(folder)}")
    typer.echo(f"next:\n  pip install -e {folder}\n  pytest {folder}\n  dsx plugin check {name}")


@app.command("check")
def check(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A distribution, an entry point, a plugin's own name, or a module.")
    ],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the findings there.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table there.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A configuration that uses it, tried as well.")
    ] = None,
    exempt: Annotated[
        list[str] | None, typer.Option("--exempt", metavar="CHECK", help="Fails on purpose, as 'driver *'; repeatable.")
    ] = None,
    deadline: Annotated[
        float, typer.Option("--deadline", min=1.0, help="Seconds of silence after which a process of it is ended.")
    ] = 60.0,
    plugin: Plugins = None,
) -> None:
    """Check contract, numerics, failures, import cost and leaks; the exit status is 1 if anything is wrong or slow."""
    with progress() as say:
        report = check_plugin(
            name,
            modules=modules(),
            config=None if config is None else read_source(config),
            exempt=exempt or (),
            deadline=deadline,
            say=say,
        )
    write(report, json_file=json_file, markdown_file=markdown_file)
    table(f"plugin {report.title}", COLUMNS, report.rows)
    typer.echo(report.summary)
    raise typer.Exit(1 if report.wrong else 0)


def modules() -> tuple[str, ...]:
    """Plugins that are not installed, those of the project and of the user, which can be imported afterwards."""
    folder = working_directory()
    if folder is None:
        return named_in(os.environ)
    project = project_around(folder)
    make_importable([*(project.roots if project is not None and project.modules else ()), folder])
    return (*(project.modules if project is not None else ()), *named_in(os.environ))


def write(report: Report, *, json_file: Path | None, markdown_file: Path | None) -> None:
    """Write the report where it is wanted."""
    if json_file is not None:
        json_file.write_text(report.as_json(), encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(report.markdown(), encoding="utf-8")


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status("") as status:
        yield status.update
