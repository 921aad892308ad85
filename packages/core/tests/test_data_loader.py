"""The loader deals every sample, equally to all ranks, and resumes exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from dsx.data import Loader, RepeatingLoader
from dsx.data.order import share
from dsx.errors import DataError


class Stream(IterableDataset[int]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def lists(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("make", [lambda n: list(range(n)), Stream])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_last_incomplete_batch(make: Any, size: int, drop_last: bool) -> None:
    """B81: 10 samples, micro-batch 4, 1 and 2 ranks, drop_last on and off."""
    ranks = [lists(Loader(make(10), batch_size=4, rank=rank, size=size, drop_last=drop_last)) for rank in range(size)]
    assert [[len(batch) for batch in batches] for batches in ranks] == [
        {(1, False): [4, 4, 2], (1, True): [4, 4], (2, False): [4, 1], (2, True): [4]}[size, drop_last]
    ] * size
    seen = Counter(sample for batches in ranks for batch in batches for sample in batch)
    assert set(seen.values()) == {1}
    assert drop_last or set(seen) == set(range(10))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_every_rank_gets_equal_shares(n: int, batch: int, size: int, drop: bool, shuffle: bool, epoch: int) -> None:
    if drop and n < batch * size:
        with pytest.raises(DataError, match="drop_last leaves no batch"):
            Loader(range(n), batch_size=batch, size=size, drop_last=True)
        return
    loaders = [
        Loader(range(n), batch_size=batch, rank=r, size=size, drop_last=drop, shuffle=shuffle) for r in range(size)
    ]
    for loader in loaders:
        loader.set_epoch(epoch)
    ranks = [lists(loader) for loader in loaders]
    assert len({tuple(map(len, batches)) for batches in ranks}) == 1
    assert all(len(batches) == len(loaders[0]) for batches in ranks)
    seen = Counter(sample for batches in ranks for one in batches for sample in one)
    if drop:
        assert all(len(one) == batch for batches in ranks for one in batches)
        assert set(seen.values()) == {1}
    else:
        assert set(seen) == set(range(n))
        assert sum(seen.values()) - n < size


@given(st.integers(1, 30), st.integers(1, 8))
def test_padding_repeats_the_first_samples(length: int, size: int) -> None:
    shares = [share(range(length), rank=rank, size=size) for rank in range(size)]
    flat = [sample for part in shares for sample in part]
    assert flat == [index % length for index in range(len(flat))]
    assert len(flat) - length < size


def test_shuffling_differs_by_epoch_and_seed_and_agrees_across_ranks() -> None:
    loader = Loader(range(50), batch_size=50)
    first, second = lists(loader)[0], lists(loader)[0]
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert lists(Loader(range(50), batch_size=50))[0] == first
    assert lists(Loader(range(50), batch_size=50, seed=1))[0] not in (first, second)
    assert lists(Loader(range(5), batch_size=5, shuffle=False)) == [[0, 1, 2, 3, 4]]


def test_an_update_sees_the_same_samples_under_any_number_of_ranks() -> None:
    """B45: with the same global batch, blocks are equal as sets."""
    whole = lists(Loader(range(24), batch_size=8))
    for size in (2, 4):
        ranks = [lists(Loader(range(24), batch_size=8 // size, rank=rank, size=size)) for rank in range(size)]
        for k, block in enumerate(whole):
            assert [sample for batches in ranks for sample in batches[k]] == block


@pytest.mark.parametrize("make", [lambda n: list(range(n)), Stream])
@pytest.mark.parametrize(("workers", "stop"), [(0, 1), (0, 3), (0, 4), (2, 3)])
def test_resume_is_exact_in_mid_epoch(make: Any, workers: int, stop: int) -> None:
    """B38: what workers have read ahead is not lost; the epoch after continues too."""
    unbroken = lists(islice(RepeatingLoader(Loader(make(19), batch_size=5, seed=7)), 8))
    first = Loader(make(19), batch_size=5, seed=7, num_workers=workers)
    begun = [batch.tolist() for batch in islice(first, stop)]
    second = Loader(make(19), batch_size=5, seed=0, num_workers=workers)
    second.load_state_dict(first.state_dict())
    assert begun + lists(islice(RepeatingLoader(second), 8 - stop)) == unbroken


def test_resume_under_another_number_of_ranks() -> None:
    """B45: the position is a number of samples."""
    two = [Loader(range(20), batch_size=2, rank=rank, size=2) for rank in range(2)]
    seen = [sample for loader in two for batch in islice(loader, 2) for sample in batch.tolist()]
    assert two[0].state_dict() == two[1].state_dict()
    one = Loader(range(20), batch_size=3)
    one.load_state_dict(two[0].state_dict())
    rest = [sample for batch in one for sample in batch.tolist()]
    assert len(rest) == 12
    assert sorted(seen + rest) == list(range(20))


def test_loading_moves_an_iterator_that_is_under_way() -> None:
    """B38: an engine holds one iterator for its life, and loads in between."""
    loader = Loader(range(12), batch_size=3, seed=3)
    running = iter(RepeatingLoader(loader))
    next(running)
    position = loader.state_dict()
    expected = [next(running).tolist() for _ in range(6)]
    for _ in range(2):
        loader.load_state_dict(position)
        assert [next(running).tolist() for _ in range(6)] == expected


def test_each_iter_is_a_new_epoch() -> None:
    loader = Loader(range(6), batch_size=2)
    lists(loader)
    assert loader.state_dict()["epoch"] == 1
    next(iter(loader))
    assert (loader.epoch, loader.consumed) == (1, 2)
    next(iter(loader))
    assert (loader.epoch, loader.consumed) == (2, 2)


def test_saved_at_the_very_end_of_an_epoch() -> None:
    loader = Loader(range(4), batch_size=2)
    running = iter(loader)
    next(running), next(running)
    other = Loader(range(4), batch_size=2)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == []
    assert lists(other) == lists(loader_at_epoch_one())


def loader_at_epoch_one() -> Loader:
    loader = Loader(range(4), batch_size=2)
    loader.set_epoch(1)
    return loader


def test_the_global_random_state_is_not_touched() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    lists(Loader(range(6), batch_size=2))
    lists(Loader(Stream(6), batch_size=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_collate_and_structures() -> None:
    pairs = TensorDataset(torch.arange(4.0), torch.arange(4))
    x, y = next(iter(Loader(pairs, batch_size=4, shuffle=False)))
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert y.tolist() == [0, 1, 2, 3]
    assert next(iter(Loader(range(3), batch_size=3, shuffle=False, collate_fn=sum))) == 3
    assert next(iter(Loader(Stream(3), batch_size=3, collate_fn=sum))) == 3


@pytest.mark.parametrize("dataset", [[], {}, Stream(0)])
def test_empty_data_is_an_error(dataset: Any) -> None:
    with pytest.raises(DataError, match="at least one"):
        list(Loader(dataset, batch_size=1))


def test_bad_arguments_are_data_errors() -> None:
    for wrong in ({"batch_size": 0}, {"batch_size": 1, "rank": 2, "size": 2}, {"batch_size": 1, "num_workers": -1}):
        with pytest.raises(DataError, match="wanted"):
            Loader(range(3), **wrong)
    with pytest.raises(DataError, match="int is no dataset"):
        Loader(3, batch_size=1)
    with pytest.raises(DataError, match="drop_last leaves no batch"):
        list(Loader(Stream(3), batch_size=4, drop_last=True))
    with pytest.raises(TypeError):
        len(Loader(Stream(3), batch_size=1))
    other = Loader(range(3), batch_size=1).state_dict()
    with pytest.raises(DataError, match="a dataset of 3 samples, this one has 4"):
        Loader(range(4), batch_size=1).load_state_dict(other)


def test_repeating_a_generator_is_an_error() -> None:
    """A second pass over a generator gives nothing: without a word the loop would spin for ever."""
    repeating = iter(RepeatingLoader(value for value in range(2)))
    assert [next(repeating), next(repeating)] == [0, 1]
    with pytest.raises(DataError, match="generator gave nothing"):
        next(repeating)
    four = iter(RepeatingLoader([0, 1, 2, 3]))
    assert [next(four) for _ in range(10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
