"""Torch's optimizers driven by pieces."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from optim_helpers import Bucket
from torch import nn

from dsx.errors import EngineError
from dsx.optim.foreign import ELEMENTWISE, ForeignOptimizer

OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
}
ALL = sorted(cls.__name__ for cls in ELEMENTWISE)


def make(name: str, params: Any) -> torch.optim.Optimizer:
    found: torch.optim.Optimizer = getattr(torch.optim, name)(params, lr=0.1, **OPTIONS.get(name, {}))
    return found


@pytest.mark.parametrize("name", [*ALL, "Adafactor"])
def test_update_equals_the_optimizer_alone(name: str) -> None:
    bucket = Bucket([(3, 5), (7,)], publish=torch.bfloat16)
    wanted = bucket.copies()
    optimizer, peer = ForeignOptimizer(make(name, bucket.masters)), make(name, wanted)
    for k in range(3):
        missing = (1,) if k == 1 else ()
        grads = [g.to(torch.bfloat16) for g in bucket.views(bucket.grad)]
        for i, (p, g) in enumerate(zip(wanted, grads, strict=True)):
            p.grad = None if i in missing else g.float() * 0.5
        pieces = bucket.pieces(missing)
        for piece, g in zip(pieces, grads, strict=True):
            piece.grad = None if piece.grad is None else g
        optimizer.update(pieces, factor=0.5)
        peer.step()
    for found, want in zip(bucket.masters, wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0)
        assert found.grad is None
    assert bucket.out is not None
    torch.testing.assert_close(bucket.out, bucket.flat.to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_making_the_state_is_neutral(name: str) -> None:
    """A state made for a checkpoint to fill: weights keep their bits, and the first update is still the first."""
    bucket, other = Bucket([(3, 5), (7,)]), Bucket([(3, 5), (7,)])
    optimizer, peer = ForeignOptimizer(make(name, bucket.masters)), ForeignOptimizer(make(name, other.masters))
    optimizer.init_state(bucket.pieces())
    torch.testing.assert_close(bucket.flat, other.flat, rtol=0, atol=0)
    assert optimizer.state.keys() == set(bucket.masters) or name == "SGD"
    optimizer.init_state(bucket.pieces())
    for _ in range(3):
        for one, b in ((optimizer, bucket), (peer, other)):
            b.grad.copy_(torch.randn(b.numel, generator=torch.Generator().manual_seed(0)))
            one.update(b.pieces(), factor=0.5)
    torch.testing.assert_close(bucket.flat, other.flat, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_bytes_of_state_are_known_before_there_is_one(name: str) -> None:
    bucket = Bucket([(30, 5), (70,)])
    optimizer = ForeignOptimizer(make(name, bucket.masters))
    predicted = optimizer.state_bytes_per_element
    optimizer.update(bucket.pieces())
    counted = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim()
    )
    assert predicted * bucket.numel == counted


def test_state_dict_goes_through() -> None:
    bucket = Bucket([(3,)])
    optimizer = ForeignOptimizer(make("Adam", bucket.masters))
    optimizer.update(bucket.pieces())
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.update(bucket.pieces())
    optimizer.load_state_dict(saved)
    assert optimizer.state[bucket.masters[0]]["step"] == 1
    bucket.masters[0].grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[bucket.masters[0]]["step"] == 2
    optimizer.zero_grad()
    assert bucket.masters[0].grad is None


def test_ownership() -> None:
    class Own(torch.optim.SGD):
        pass

    class Said(torch.optim.SGD):
        ownership = "element"

    p = [nn.Parameter(torch.zeros(2, 2))]
    assert ForeignOptimizer(torch.optim.RMSprop(p)).ownership == "element"
    assert ForeignOptimizer(torch.optim.Muon(p)).ownership == "parameter"
    assert ForeignOptimizer(Own(p)).ownership == "parameter"
    assert ForeignOptimizer(Said(p)).ownership == "element"


def test_those_that_need_more_than_gradients_are_refused() -> None:
    p = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(EngineError, match="LBFGS evaluates the model again"):
        ForeignOptimizer(torch.optim.LBFGS(p))
    with pytest.raises(EngineError, match="sparse"):
        ForeignOptimizer(torch.optim.SparseAdam(p))
