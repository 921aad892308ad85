"""Ranks that run different code: an error on each rank, in time, that says where they parted."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
from torch import Tensor, nn
from zero_models import WIDTH, Block, engine_of, loss_of, make, rank, samples, settings, train

from dsx.errors import CommError
from dsx.testing.ranks import run_ranks


class Uneven(nn.Module):
    """Rank 0 calls head_b once, rank 1 three times."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Block()
        self.head_b = nn.Linear(WIDTH, WIDTH)
        self.even = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        for _ in range(1 if self.even or rank() == 0 else 3):
            x = self.head_b(x)
        return x


def _uneven(reuse: int) -> tuple[str, float]:
    torch.manual_seed(0)
    engine = engine_of(Uneven(), settings(3, comm_timeout=2.0, zero={"stage3_max_reuse_distance": reuse}))
    train(engine, range(2))
    engine.module.even = False
    inputs, targets = samples(2)
    begun = time.monotonic()

    def updates() -> None:
        for _ in range(3):
            engine.backward(loss_of(engine(inputs), targets))
            engine.step()

    with pytest.raises(CommError) as caught:
        updates()
    elapsed = time.monotonic() - begun
    with contextlib.suppress(CommError):  # what is not whole now cannot be gathered, and yet all is released
        engine.close()
    assert not engine.module._forward_pre_hooks
    assert not engine.module.head_b._forward_pre_hooks
    return str(caught.value), elapsed


def test_uneven_calls_of_a_module_are_reported_by_name_and_count() -> None:
    """B32: within the deadline both ranks raise an error that names module B and how often each rank called it."""
    found = run_ranks(_uneven, 0)
    for message, elapsed in found:
        assert elapsed < 10.0
        # Rank 1 stands in its second call, which rank 0 does not make.
        assert "unequal calls of 'gather head_b.weight' in this update: rank 0 1, rank 1 2" in message
    assert found[0][0] == found[1][0]


def _fails_alone() -> str:
    """Rank 1 fails in its own forward; the block around the engine must not hang on the way out."""
    begun = time.monotonic()
    try:
        with engine_of(make("Blocks"), settings(3, comm_timeout=4.0)) as engine:
            train(engine, [0])
            if rank() == 1:
                raise ValueError("rank 1 alone")
            train(engine, [1])
    except (ValueError, CommError) as error:
        assert time.monotonic() - begun < 10
        return type(error).__name__
    return "nothing"


def test_an_error_of_one_rank_is_the_error_that_is_seen() -> None:
    assert run_ranks(_fails_alone)[::-1] == ["ValueError", "CommError"]
