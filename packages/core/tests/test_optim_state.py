"""State dictionaries of our optimizers: among themselves, with torch's, copied and pickled."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from optim_helpers import EVERY, PAIRS, Bucket, close
from torch import nn

from dsx.errors import EngineError
from dsx.optim.adam import AdamW
from dsx.optim.lion import Lion


def run(optimizer: Any, bucket: Bucket, seeds: range) -> None:
    for seed in seeds:
        bucket.grad.copy_(torch.randn(bucket.numel, generator=torch.Generator().manual_seed(seed)))
        optimizer.update(bucket.pieces(), factor=0.5)


@pytest.mark.parametrize("name", EVERY)
def test_stopping_and_going_on_equals_going_on(name: str) -> None:
    shapes = [(3, 5), (7,), (0,), (2, 3, 4)]
    whole, first, second = Bucket(shapes), Bucket(shapes), Bucket(shapes, seed=9)
    run(EVERY[name](whole.masters), whole, range(6))
    optimizer = EVERY[name](first.masters)
    run(optimizer, first, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    second.flat.copy_(first.flat)
    resumed = EVERY[name](second.masters)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, second, range(3, 6))
    torch.testing.assert_close(second.flat, whole.flat, rtol=0, atol=0)
    storages = {
        resumed.state[p][k].untyped_storage().data_ptr()
        for p in second.masters[:2]
        for k in resumed.state[p]
        if k != "step"
    }
    slots = len(resumed.state[second.masters[1]]) - 1
    assert len(storages) == (slots if name not in ("muon",) else 3), "loaded states are neighbours again"


@pytest.mark.parametrize("name", PAIRS)
def test_torch_state_is_taken(name: str) -> None:
    ours, theirs = PAIRS[name]
    bucket = Bucket([(3, 5), (7,)])
    wanted = bucket.copies()
    peer = theirs(wanted)

    def peer_step(seed: int) -> None:
        bucket.grad.copy_(torch.randn(bucket.numel, generator=torch.Generator().manual_seed(seed)))
        for p, g in zip(wanted, bucket.views(bucket.grad), strict=True):
            p.grad = g.clone()
        peer.step()

    peer_step(0)
    for master, p in zip(bucket.masters, wanted, strict=True):
        master.detach().copy_(p.detach())
    optimizer = ours(bucket.masters)
    optimizer.load_state_dict(state_of(peer, optimizer))
    peer_step(1)
    optimizer.update(bucket.pieces())
    close(bucket.masters, wanted)


def state_of(peer: torch.optim.Optimizer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Torch's state with our groups, whose settings have partly other names."""
    found = copy.deepcopy(peer.state_dict())
    found["param_groups"] = optimizer.state_dict()["param_groups"]
    return found


def test_moments_keep_their_dtype() -> None:
    bucket, other = Bucket([(40,)]), Bucket([(40,)])
    optimizer = AdamW(bucket.masters, state_dtype="bf16")
    run(optimizer, bucket, range(2))
    resumed = AdamW(other.masters, state_dtype=torch.bfloat16)
    resumed.load_state_dict(optimizer.state_dict())
    found, wanted = resumed.state[other.masters[0]], optimizer.state[bucket.masters[0]]
    assert found["exp_avg"].dtype == torch.bfloat16
    torch.testing.assert_close(found["exp_avg_sq"], wanted["exp_avg_sq"], rtol=0, atol=0)

    low = nn.Parameter(torch.ones(40, dtype=torch.bfloat16))
    precise = AdamW([low])
    low.grad = torch.full_like(low, 0.001)
    precise.step()
    again = AdamW([nn.Parameter(torch.ones(40, dtype=torch.bfloat16))])
    again.load_state_dict(precise.state_dict())
    (state,) = again.state.values()
    assert state["exp_avg"].dtype == torch.float32
    torch.testing.assert_close(state["exp_avg"], precise.state[low]["exp_avg"], rtol=0, atol=0)


def test_state_of_another_optimizer_is_refused() -> None:
    one, two = Bucket([(4,)]), Bucket([(4,)])
    lion = Lion(one.masters)
    run(lion, one, range(1))
    adam = AdamW(two.masters)
    with pytest.raises(EngineError, match="no 'exp_avg_sq'.*another optimizer than AdamW"):
        adam.load_state_dict({**lion.state_dict(), "param_groups": adam.state_dict()["param_groups"]})


def test_copies_and_pickles_work_on() -> None:
    bucket = Bucket([(4,), (3,)])
    optimizer = AdamW(bucket.masters, lr=0.1)
    run(optimizer, bucket, range(2))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        params = other.param_groups[0]["params"]
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.ones_like(p)
        other.step()
        assert all((p != b).all() for p, b in zip(params, before, strict=True))
        assert other.state[params[0]]["step"] == 3


def test_a_momentum_given_later_is_kept_from_then_on() -> None:
    ours, theirs = PAIRS["sgd"]
    bucket = Bucket([(4,), (3,)])
    wanted = bucket.copies()
    optimizer, peer = ours(bucket.masters), theirs(wanted)
    for k in range(4):
        if k == 2:
            optimizer.param_groups[0]["momentum"] = peer.param_groups[0]["momentum"] = 0.9
        for p, g in zip(wanted, bucket.views(bucket.grad), strict=True):
            p.grad = g.clone()
        optimizer.update(bucket.pieces())
        peer.step()
    close(bucket.masters, wanted)


def test_closure_and_hooks_of_torch() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = AdamW([p], lr=0.1)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> float:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 3.0
    assert seen == ["before", "after"]
    assert (p < 1).all()
