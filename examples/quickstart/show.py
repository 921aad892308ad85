"""What a run shows: its precision, a progress bar, the bytes it holds; a picture of the losses at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

KINDS = ("parameters", "gradients", "optimizer", "buffers")


class Bar:
    """A progress bar on a terminal, ten lines elsewhere; silent on every rank but the first."""

    def __init__(self, *, first: int, last: int, shown: bool) -> None:
        self.console = Console(quiet=not shown)
        self.live = self.console.is_terminal
        self.first, self.last = first, last
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=self.console, disable=not self.live)
        self.task = self.progress.add_task("", completed=first, total=last, loss="–")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.progress.stop()

    def step(self, done: int, loss: float) -> None:
        """``done`` updates are made; the last one had this loss."""
        self.progress.update(self.task, completed=done, loss=f"{loss:.4f}")
        every = max(1, (self.last - self.first) // 10)
        if not self.live and ((done - self.first) % every == 0 or done == self.last):
            self.console.print(f"step {done:>4} of {self.last}   loss {loss:.4f}")


def bytes_table(run: Mapping[str, Any]) -> Table:
    """Bytes of training state on the first rank by kind: as the formulas say, and as the storages are."""
    predicted, counted = run["bytes_predicted"], run["bytes_counted"]
    title = f"training state of one of {run['ranks']} rank(s) under ZeRO stage {run['stage']}"
    table = Table("kind", title=title, title_justify="left", min_width=len(title))
    for name in ("predicted MiB", "counted MiB"):
        table.add_column(name, justify="right")
    for kind in KINDS:
        table.add_row(kind, f"{predicted[kind] / 2**20:.2f}", f"{counted[kind] / 2**20:.2f}")
    table.add_section()
    table.add_row("all", *(f"{sum(values.values()) / 2**20:.2f}" for values in (predicted, counted)))
    return table


def picture(curves: Sequence[tuple[str, int, Sequence[float]]], file: Path, *, title: str) -> None:
    """Write a PNG of loss curves; each has a label, the update it begins after, and its losses in nats a byte."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, first, losses in curves:
        axes.plot(range(first + 1, first + 1 + len(losses)), losses, label=label, linewidth=1.2)
    axes.set(title=title, xlabel="update", ylabel="loss (nats a byte)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=140)
