"""What the examples promise of several ranks: votes, islands, codecs and loops on real ones."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.errors import PlanError
from dsx.plugin import World
from dsx.plugin.manager import plugin_manager
from dsx.testing import check_driver, run_ranks

RATE = 0.1
PLAIN = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": RATE}}}


def batch_of(rank: int) -> Tensor:
    """Inputs on which the ranks disagree."""
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(rank))


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def local_gradients(rank: int) -> dict[str, Tensor]:
    """What one rank computes, in plain PyTorch."""
    model = model_of()
    model(batch_of(rank)).square().mean().backward()
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


def updated(name: str, config: dict[str, Any], rank: int, updates: int = 1) -> tuple[dict[str, Tensor], int]:
    """Weights of this rank after some updates, and the bytes that it sent for gradients' reductions."""
    manager = plugin_manager(extra=[f"examples.extensions.{name}"], block=["zero", "native"])
    engine, *_ = dsx.initialize(model=model_of(), config={**PLAIN, **config}, plugins=manager)
    with engine:
        for _ in range(updates):
            engine.backward(engine(batch_of(rank)).square().mean())
            engine.step()
        weights = {key: param.detach().clone() for key, param in engine.named_parameters()}
        sent = sum(cost.bytes for cost in engine.comm_account().by_op.values())
    return weights, sent


def one_update(name: str, config: dict[str, Any], updates: int = 1) -> tuple[dict[str, Tensor], int]:
    """On one rank."""
    return updated(name, config, torch.distributed.get_rank(), updates)


def test_the_driver_counts_votes_on_three_ranks() -> None:
    ranks = [weights for weights, _ in run_ranks(one_update, "driver", {"majority_vote": {"enabled": True}}, world=3)]
    votes = [local_gradients(rank) for rank in range(3)]
    disagreed = 0
    for name, before in model_of().named_parameters():
        counted = sum(vote[name].sign() for vote in votes)
        disagreed += int((counted.abs() < 3).sum())
        for weights in ranks:
            assert torch.allclose(weights[name], before - RATE * counted.sign(), atol=1e-6), name
    assert disagreed > 0


def test_the_driver_leaves_ties_alone_and_refuses_fp16() -> None:
    (first, _), (second, _) = run_ranks(one_update, "driver", {"majority_vote": {"enabled": True}})
    votes = [local_gradients(rank) for rank in range(2)]
    for name, before in model_of().named_parameters():
        tied = votes[0][name].sign() != votes[1][name].sign()
        assert torch.equal(first[name], second[name])
        assert torch.equal((first[name] == before), tied)
    config = {"train_batch_size": 1, "fp16": {"enabled": True}, "majority_vote": {"enabled": True}}
    manager = plugin_manager(extra=["examples.extensions.driver"], block=["zero", "native"])
    with pytest.raises(PlanError, match="dtype"):
        dsx.make_plan(config, world=World(), plugins=manager)


def test_the_driver_keeps_every_law_but_that_its_updates_are_others() -> None:
    with pytest.raises(AssertionError) as broken:
        check_driver({"majority_vote": {"enabled": True}}, plugins=["examples.extensions.driver"], updates=2)
    laws = "parity|same|gathered|gradient|reload|bytes|close"
    assert set(re.findall(rf"\b({laws}): ", str(broken.value))) == {"parity", "gradient"}


def test_the_family_reduces_within_its_island() -> None:
    config = {"islands": {"count": 2, "names": ["1.*"]}}
    ranks = [weights for weights, _ in run_ranks(one_update, "parameter_family", config)]
    gradients = [local_gradients(rank) for rank in range(2)]
    for name, before in model_of().named_parameters():
        for rank, weights in enumerate(ranks):
            own = gradients[rank][name] if name.startswith("1.") else gradients[0][name] + gradients[1][name]
            # Every gradient is divided by the loss contributions of the update, which two ranks make.
            assert torch.allclose(weights[name], before - RATE * own / 2, atol=1e-6), name
    assert not torch.equal(ranks[0]["1.weight"], ranks[1]["1.weight"])
    assert torch.equal(ranks[0]["0.weight"], ranks[1]["0.weight"])


def test_the_codec_carries_gradients() -> None:
    coded, plain = (run_ranks(one_update, "codec", config, 5) for config in ({"gradient_codec": "float8"}, {}))
    (first, sent), (second, _) = coded
    (wanted, sent_plain), _ = plain
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        assert torch.allclose(value, wanted[name], atol=0.02), name
    assert any(not torch.equal(value, wanted[name]) for name, value in first.items())
    assert sent < sent_plain


class Loss(nn.Module):
    """A model that gives its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model_of()

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.inner(x).square().mean()
        return loss


def skipping() -> tuple[float, int, Tensor]:
    """One update, of whose three batches the first is broken on one rank alone."""
    rank = torch.distributed.get_rank()
    broken = torch.full((2, 3), float("inf"))
    manager = plugin_manager(extra=["examples.extensions.loop"], block=["zero", "native"])
    config = {**PLAIN, "skip_broken_batches": {"enabled": True}}
    engine, *_ = dsx.initialize(model=Loss(), config=config, plugins=manager)
    with engine:
        loss = engine.train_batch(iter([broken if rank else batch_of(9), batch_of(rank)]))
        return loss.item(), engine.loop.skipped, next(engine.parameters()).detach().clone()  # type: ignore[attr-defined]


def test_the_loop_leaves_a_batch_out_on_every_rank() -> None:
    (loss, skipped, weights), other = run_ranks(skipping)
    assert (loss, skipped) == other[:2]
    assert skipped == 1
    assert torch.equal(weights, other[2])
    gradients = [local_gradients(rank)["0.weight"] for rank in range(2)]
    assert torch.allclose(weights, model_of()[0].weight - RATE * (gradients[0] + gradients[1]) / 2, atol=1e-6)
