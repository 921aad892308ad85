"""Rows of a benchmark, and how they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

COLUMNS = ("what", "ours", "peer", "unit", "ratio", "limit", "goal", "holds", "note")


@dataclass(frozen=True)
class Row:
    """One measured number of ours, beside the peer's, with the goal and whether it holds."""

    what: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    """Ours over the peer's, turned so that more is better."""
    limit: float | None
    """The bound that ``ours`` or ``ratio`` is held against, as ``goal`` says."""
    goal: str
    holds: bool | None
    """``None``: shown for comparison, no goal."""
    note: str = ""


def at_most(what: str, ours: float, limit: float, *, unit: str, goal: str, note: str = "") -> Row:
    """A row whose own number may not pass a limit."""
    return Row(what, ours, None, unit, None, limit, goal, ours <= limit, note)


def near(what: str, ours: float, wanted: float, *, within: float, unit: str, note: str = "") -> Row:
    """A row whose number must lie within a share of a number known beforehand, shown in the peer's place."""
    ratio = ours / wanted if wanted else None
    holds = abs(ours - wanted) <= within * wanted
    return Row(what, ours, wanted, unit, ratio, within, f"within {within:.0%} of the formula", holds, note)


def cell(value: float | bool | str | None) -> str:
    """One value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        small = value != 0 and abs(value) < 1e-3
        return f"{value:.2e}" if small else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def show(rows: Iterable[Row], *, title: str, console: Console) -> None:
    """Print rows as an aligned table."""
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        numeric = column in ("ours", "peer", "ratio", "limit")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        style = "bold red" if row.holds is False else None
        table.add_row(*(cell(getattr(row, column)) for column in COLUMNS), style=style)
    console.print(table)


def markdown(rows: Sequence[Row], *, title: str) -> str:
    """The same table for a page."""
    lines = [f"### {title}", "", "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell(getattr(row, column)) for column in COLUMNS) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float]) -> str:
    """Least, middle and greatest, for a note."""
    return f"{cell(min(values))} … {cell(statistics.median(values))} … {cell(max(values))} of {len(values)}"
