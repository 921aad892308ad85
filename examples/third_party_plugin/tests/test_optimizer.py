"""The optimizer by itself, without an engine: a torch optimizer like any other."""

from __future__ import annotations

import copy

import pytest
import torch
from dsx.errors import ConfigError
from dsx.testing import check_optimizer
from two_embeddings import LR, Embeddings, batch, plainly_trained

from acme_sparse_adam import NAME
from acme_sparse_adam.optimizer import SparseAdam


def trained(model: Embeddings, optimizer: torch.optim.Optimizer, updates: range) -> dict[str, torch.Tensor]:
    for update in updates:
        optimizer.zero_grad()
        model(*batch(update, 0)).backward()
        optimizer.step()
    return model.state_dict()


def test_numbers_are_those_of_torch() -> None:
    """torch.optim.SparseAdam takes sparse gradients only; ours takes the dense ones of the same rows."""
    model = Embeddings()
    found, wanted = trained(model, SparseAdam(model.parameters(), lr=LR), range(20)), plainly_trained(updates=20)
    for name, weights in wanted.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-5, atol=1e-6)


def test_rows_without_a_sample_stay() -> None:
    model = Embeddings()
    before = copy.deepcopy(model)
    trained(model, SparseAdam(model.parameters(), lr=LR), range(3))
    used = {int(user) for update in range(3) for user in batch(update, 0)[0]}
    moved = (model.users.weight != before.users.weight).any(1).nonzero().view(-1)
    assert set(moved.tolist()) == used
    assert len(used) < len(model.users.weight) / 2


def test_its_state_goes_on_elsewhere() -> None:
    whole, half, other = Embeddings(), Embeddings(), Embeddings()
    wanted = trained(whole, SparseAdam(whole.parameters(), lr=LR), range(6))
    first = SparseAdam(half.parameters(), lr=LR)
    other.load_state_dict(trained(half, first, range(3)))
    second = SparseAdam(other.parameters(), lr=1.0)
    second.load_state_dict(first.state_dict())
    found = trained(other, second, range(3, 6))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_it_keeps_the_laws_of_an_optimizer() -> None:
    check_optimizer(NAME, params={"lr": LR})


@pytest.mark.parametrize(
    ("params", "said"),
    [({"lr": -1.0}, "lr"), ({"betas": (0.9, 1.0)}, "betas"), ({"betas": 0.9}, "betas"), ({"eps": -1e-8}, "eps")],
)
def test_settings_out_of_range_are_refused(params: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer.params.{said}"):
        SparseAdam([torch.nn.Parameter(torch.zeros(2))], **params)  # type: ignore[arg-type]
