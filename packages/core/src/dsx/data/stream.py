"""Datasets that can only be iterated, dealt to ranks and to worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from dsx.data.order import share


class StreamBatches(IterableDataset[tuple[int, Any]]):
    """(samples in the block, this rank's batch of it) for each block of a stream.

    Every rank and every worker reads the whole stream and keeps its part, so the stream must come in the same order
    everywhere and must not split itself by rank or worker.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        *,
        batch_size: int,
        rank: int,
        size: int,
        start: int,
        drop_last: bool,
        collate: Callable[[list[Any]], Any],
    ) -> None:
        self.dataset, self.batch_size, self.rank, self.size = dataset, batch_size, rank, size
        self.start, self.drop_last, self.collate = start, drop_last, collate

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        stream = islice(self.dataset, self.start, None)
        full = self.batch_size * self.size
        index = 0
        while block := list(islice(stream, full)):
            if len(block) < full and self.drop_last:
                return
            # The loader asks its workers in turn, one batch each: so batches come in the order of blocks.
            if index % workers == worker:
                yield len(block), self.collate(share(block, rank=self.rank, size=self.size))
            index += 1


def unchanged(item: Any) -> Any:
    """A batch is made already; the loader must not collate it again."""
    return item
