"""The loader that deals a dataset to data-parallel ranks and goes on exactly where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from dsx.data.order import blocks, count, order_of_epoch, share
from dsx.data.stream import StreamBatches, unchanged
from dsx.errors import DataError


class Loader:
    """Batches of one rank out of ``size``; every rank gets equally many, equally large ones.

    dataset: anything with ``__len__`` and ``__getitem__``, or an iterable that gives the same stream on every rank.
    batch_size: samples in a batch of one rank. shuffle: a new order in every epoch, from seed and epoch (the default,
    as in DeepSpeed); streams keep their own order. drop_last: leave out what does not fill a batch on every rank.
    Otherwise every sample is seen: the last batch is shorter, and where its samples do not divide among the ranks,
    the first of them are given a second time (at most ``size - 1``). options: further arguments of torch's DataLoader.

    Each ``iter`` begins a new epoch. After ``load_state_dict`` the next one, or the one under way, goes on behind the
    last batch that was handed out before ``state_dict``, also under another batch size or number of ranks.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        rank: int = 0,
        size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        _check(batch_size=batch_size, rank=rank, size=size, num_workers=num_workers)
        self.dataset, self.batch_size, self.rank, self.size = dataset, batch_size, rank, size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.collate_fn: Callable[[list[Any]], Any] = default_collate if collate_fn is None else collate_fn
        # Without an accelerator torch only warns about pinning, once in every epoch.
        pins = pin_memory and torch.accelerator.is_available()
        self._options = {"num_workers": num_workers, "pin_memory": pins, **(options or {})}
        self.samples = _samples(dataset)
        """Length of the dataset; ``None`` for a stream."""
        if self.samples is not None and not count(self.samples, block=self.block, drop_last=drop_last):
            raise DataError(self._nothing(self.samples))
        self.epoch = 0
        """Index of the epoch under way, or of the next one."""
        self.consumed = 0
        """Samples of this epoch that all ranks together have been given, padding not counted."""
        self._begun = False
        self._resumed = 0  # how often a state was loaded: an iterator under way notices

    @property
    def block(self) -> int:
        """Samples that all ranks together take at once."""
        return self.batch_size * self.size

    def __len__(self) -> int:
        """Batches in an epoch, the same number on every rank. A stream has no length: TypeError."""
        if self.samples is None:
            raise TypeError("a stream has no length")
        return count(self.samples, block=self.block, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self.set_epoch(self.epoch + 1)
        self._begun = True
        seen = -1
        while seen != self._resumed:
            seen = self._resumed
            for taken, batch in self._batches():
                self.consumed += taken
                yield batch
                if seen != self._resumed:
                    self._begun = True
                    break
            else:
                if not self.consumed:
                    raise DataError(self._nothing(0))
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch at its first sample with the next ``iter``."""
        self.epoch, self.consumed, self._begun = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Position as plain data, equal on every rank: it counts what was handed out, not what workers have read."""
        return {"epoch": self.epoch, "consumed": self.consumed, "seed": self.seed, "samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position. A DataError where it is of a dataset of another length."""
        if state["samples"] != self.samples:
            raise DataError(
                f"the position is in a dataset of {state['samples']} samples, this one has {self.samples}: "
                "give the same dataset, or leave the loader's state out of the load"
            )
        self.set_epoch(int(state["epoch"]))
        self.consumed, self.seed = int(state["consumed"]), int(state["seed"])
        self._resumed += 1

    def _batches(self) -> Iterator[tuple[int, Any]]:
        """(samples taken by all ranks, this rank's batch) from the present position to the end of the epoch."""
        # torch draws a seed for its workers from the global generator unless it is given one.
        generator = torch.Generator().manual_seed((self.seed + self.epoch) % 2**63)
        if self.samples is None:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(self.epoch)
            stream = StreamBatches(
                self.dataset,
                batch_size=self.batch_size,
                rank=self.rank,
                size=self.size,
                start=self.consumed,
                drop_last=self.drop_last,
                collate=self.collate_fn,
            )
            yield from DataLoader(stream, batch_size=None, collate_fn=unchanged, generator=generator, **self._options)
            return
        order = order_of_epoch(self.samples, shuffle=self.shuffle, seed=self.seed, epoch=self.epoch)
        spans = list(blocks(self.samples, block=self.block, start=self.consumed, drop_last=self.drop_last))
        mine = [share(order[first:last], rank=self.rank, size=self.size) for first, last in spans]
        loader: Iterable[Any] = DataLoader(
            self.dataset, batch_sampler=mine, collate_fn=self.collate_fn, generator=generator, **self._options
        )
        for (first, last), batch in zip(spans, loader, strict=True):
            yield last - first, batch

    def _nothing(self, samples: int) -> str:
        found = f"the dataset has {samples} samples" if samples or self.samples == 0 else "the stream gave no batch"
        if not self.drop_last:
            return f"{found}: wanted at least one"
        return (
            f"{found}, and drop_last leaves no batch: one takes {self.block} ({self.batch_size} on each of {self.size} "
            "ranks). Give more samples, a smaller batch, or drop_last=False"
        )


class RepeatingLoader:
    """A loader without end: when it is through, it begins anew. Position and length are the loader's own."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        empty = 0
        while empty < 2:  # one empty pass is the end of an epoch that was resumed at its end
            empty += 1
            for batch in self.loader:
                empty = 0
                yield batch
        raise DataError(
            f"{type(self.loader).__name__} gave nothing, so it cannot be repeated: a generator can be read once only; "
            "give a dataset or a list"
        )

    def state_dict(self) -> dict[str, Any]:
        """The loader's own position."""
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand a position to the loader."""
        self.loader.load_state_dict(state)


def _check(*, batch_size: int, rank: int, size: int, num_workers: int) -> None:
    if batch_size < 1 or size < 1 or num_workers < 0:
        raise DataError(f"batch_size={batch_size}, size={size}, num_workers={num_workers}: wanted at least 1, 1 and 0")
    if not 0 <= rank < size:
        raise DataError(f"rank {rank} of {size}: wanted 0 to {size - 1}")


def _samples(dataset: Any) -> int | None:
    if not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return len(dataset)
    if not hasattr(dataset, "__iter__"):
        raise DataError(
            f"a {type(dataset).__name__} is no dataset: wanted __len__ and __getitem__, or something to iterate over"
        )
    return None
