"""How commands write: tables and text to stdout, errors as one message to stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 200
"""Columns where stdout is no terminal, so that a table in a file keeps its cells whole."""


def console() -> Console:
    """A console on stdout as it is now."""
    stream = sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDE, soft_wrap=False, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; cells are plain text and are folded where they are too long."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for name in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    console().print(made)


@contextmanager
def told_once() -> Iterator[None]:
    """Within it, a warning of dsx is one message on stderr, once, without the line of code that led to it."""
    told: set[str] = set()
    with warnings.catch_warnings():
        otherwise = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **named: Any) -> None:
            if not category.__module__.startswith("dsx."):
                otherwise(message, category, *place, **named)
            elif str(message) not in told:
                told.add(str(message))
                sys.stderr.write(f"{category.__name__}: {message}\n")

        warnings.showwarning = show
        yield


def fail(error: BaseException) -> None:
    """Print the class of an error, its message and its notes to stderr."""
    lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
    sys.stderr.write("\n".join(lines) + "\n")
