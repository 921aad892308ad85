"""The option ``--plugin``: plugins that are not installed, for one command and for the processes that it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from dsx.plugin.local import VARIABLE, named_in

OPTION = "--plugin"


def use(modules: Sequence[str] | None) -> list[str]:
    """Add modules to DSX_PLUGINS, which every plugin manager of this process and of its ranks reads."""
    given = [name.strip() for text in modules or () for name in text.split(",") if name.strip()]
    if given:
        os.environ[VARIABLE] = ",".join(dict.fromkeys((*named_in(os.environ), *given)))
    return given


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        OPTION,
        metavar="MODULE",
        help="A plugin that is not installed, by its module; may be repeated.",
        callback=use,
        is_eager=True,
    ),
]
"""The type of a parameter ``plugin: Plugins = None``: parsing it has done all there is to do."""


@contextmanager
def as_before() -> Iterator[None]:
    """Around one command line: afterwards DSX_PLUGINS is what it was."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def leading(arguments: Sequence[str]) -> list[str]:
    """Modules named before the subcommand, which must be known before there is a subcommand of theirs to be found."""
    found: list[str] = []
    waiting = False
    for text in arguments:
        if waiting:
            found.append(text)
            waiting = False
        elif text == OPTION:
            waiting = True
        elif text.startswith(f"{OPTION}="):
            found.append(text.partition("=")[2])
        elif not text.startswith("-"):
            break
    return found
