"""Ranks as threads of one process, for what only exchanges objects: checkpoints, and stores in a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dsx.checkpoint.boxes import Boxes
from dsx.plugin.types import CheckpointPart

PATIENCE = 20.0
"""Seconds that a rank waits for the others."""


class ThreadGroup:
    """What checkpoints ask of Collectives, for ranks that are threads."""

    def __init__(self, rank: int, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.name = rank, size, "threads"
        self._board, self._barrier = board, barrier

    def exchange_objects(self, value: Any, *, site: str) -> list[Any]:
        """Every rank's value, by rank; a different ``site`` on another rank is an error."""
        self._board[self.rank] = (site, value)
        self._barrier.wait(PATIENCE)
        sites = {entry[0] for entry in self._board}
        values = [entry[1] for entry in self._board]
        self._barrier.wait(PATIENCE)
        if len(sites) != 1:
            raise AssertionError(f"ranks are at different places: {sites}")
        return values


def run_threads(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """``function(group)`` on each of ``size`` ranks that are threads: its result, or its exception, by rank."""
    board, barrier = [None] * size, threading.Barrier(size)
    results: list[Any] = [None] * size

    def body(rank: int) -> None:
        try:
            results[rank] = function(ThreadGroup(rank, size, board, barrier))
        except Exception as error:  # noqa: BLE001 - given back to the test
            results[rank] = error
            if isinstance(error, (AssertionError, threading.BrokenBarrierError)):
                barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def every(results: Sequence[Any]) -> list[Any]:
    """The results, of which none may be an exception."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


def single() -> ThreadGroup:
    """A group of one."""
    return ThreadGroup(0, 1, [None], threading.Barrier(1))


def shares(numel: int, cuts: Sequence[float]) -> list[tuple[int, int]]:
    """[start, stop) of each rank, from fractions of the whole."""
    borders = [0, *sorted(round(cut * numel) for cut in cuts), numel]
    return list(pairwise(borders))


class Holder:
    """Holds a range of each named tensor and gives it to checkpoints as the part ``model``."""

    def __init__(self, whole: Mapping[str, Tensor], *, rank: int, size: int, cuts: Sequence[float] = ()) -> None:
        cuts = cuts or [k / size for k in range(1, size)]
        self.plain: Any = {"step": 3}
        self.held: dict[str, tuple[tuple[int, ...], int, Tensor]] = {}
        for name, tensor in whole.items():
            start, stop = shares(tensor.numel(), cuts)[rank]
            self.held[name] = (tuple(tensor.shape), start, tensor.flatten()[start:stop].clone())

    def state(self) -> dict[str, Any]:
        """Boxes of the tensors, and plain data."""
        boxes = {
            name: Boxes(name, shape, part.dtype, ((start, part),) if part.numel() else ())
            for name, (shape, start, part) in self.held.items()
        }
        return {"weights": boxes, "plain": self.plain}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the plain data; tensors are filled in place."""
        self.plain = state["plain"]

    def part(self, name: str = "model", version: int = 1, **options: Any) -> CheckpointPart:
        """What checkpoints are given."""
        return CheckpointPart(name, version, self.state, self.load, **options)

    def erase(self) -> None:
        """Forget everything."""
        for _, _, part in self.held.values():
            part.zero_()
        self.plain = {"step": -1}

    def equals(self, whole: Mapping[str, Tensor]) -> bool:
        """Whether this rank's ranges are those of these tensors, bit for bit."""
        return self.held.keys() == whole.keys() and all(
            torch.equal(part, whole[name].flatten()[start : start + part.numel()])
            for name, (_, start, part) in self.held.items()
        )
