"""The engine alone: losses, norms and weights equal plain PyTorch's on one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.testing.awkward import MICRO, Awkward, awkward_batch
from dsx.testing.parity import Course, plain, steered, weights_apart

Ranks = Callable[..., list[Any]]
ADAM: Mapping[str, Any] = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}
CASES = ((1, False, 0.0, True), (3, False, 0.7, False), (1, True, 0.7, False), (3, True, 0.0, True))
"""(accumulation, two groups, clipping, plain backward): every pair of settings occurs."""


def config(**more: Any) -> dict[str, Any]:
    chosen = {"train_micro_batch_size_per_gpu": MICRO, "optimizer": {"type": "AdamW", "params": dict(ADAM)}, **more}
    return {key: value for key, value in chosen.items() if value is not None}


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    params = list(model.parameters())
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 3e-3, "weight_decay": 0.0}]


def expected(world: int, *, groups: bool = False, **more: Any) -> Course:
    model = Awkward()
    optimizer = torch.optim.AdamW(two_groups(model) if groups else model.parameters(), **ADAM)
    return plain(model, awkward_batch, optimizer=optimizer, updates=3, world=world, **more)


def ours(settings: Mapping[str, Any], *, by_loss: bool = False, groups: bool = False) -> Course:
    model = Awkward()
    params = two_groups(model) if groups else None
    with dsx.initialize(model=model, model_parameters=params, config=settings)[0] as engine:
        return steered(engine, awkward_batch, updates=3, plain_backward=by_loss)


def fp32_gaps(world: int) -> dict[str, float]:
    gaps = {}
    for accumulation, groups, clip, by_loss in CASES:
        course = ours(
            config(gradient_accumulation_steps=accumulation, gradient_clipping=clip), by_loss=by_loss, groups=groups
        )
        reference = expected(world, groups=groups, accumulation=accumulation, clip=clip)
        gaps[f"{accumulation=} {groups=} {clip=} {by_loss=}"] = course.apart(reference)
    for more in ({"prescale_gradients": True}, {"gradient_predivide_factor": 2.0}):
        gaps[str(more)] = ours(config(**more)).apart(expected(world))
    gaps["sum"] = ours(config(gradient_allreduce_op="sum")).apart(expected(world, divisor=1))
    return gaps


@pytest.mark.parametrize("world", [1, 2, 3])
def test_fp32_equals_plain_torch(world: int, ranks: Ranks) -> None:
    for gaps in [fp32_gaps(1)] if world == 1 else ranks(fp32_gaps, world, world=world):
        assert {case: gap for case, gap in gaps.items() if not gap <= 2e-6} == {}


def low_gaps(world: int) -> dict[str, float]:
    gaps = {}
    for name, dtype, scale in (("bf16", torch.bfloat16, 1.0), ("fp16", torch.float16, 256.0)):
        section = {"enabled": True, "initial_scale_power": 8} if name == "fp16" else {"enabled": True}
        reference = expected(world, accumulation=2, dtype=dtype, scale=scale)
        for by_loss in (False, True):
            course = ours(config(gradient_accumulation_steps=2, **{name: section}), by_loss=by_loss)
            gaps[f"{name} {by_loss=}"] = course.apart(reference)
    return gaps


@pytest.mark.parametrize("world", [1, 2])
def test_low_precision_is_near_plain_torch(world: int, ranks: Ranks) -> None:
    """The distance is one rounding of the weights that tips the other way."""
    for gaps in [low_gaps(1)] if world == 1 else ranks(low_gaps, world):
        assert all(gap <= (4e-3 if "bf16" in case else 4e-4) for case, gap in gaps.items()), gaps


class WithBuffers(nn.Module):
    """Running statistics, an index buffer, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(5, 2)
        self.register_buffer("order", torch.arange(5))
        self.register_buffer("scratch", torch.ones(1), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.out(self.norm(x)[:, self.order] * self.scratch).float() - y.float()).square().mean()


def test_buffers_are_kept_and_found_in_the_state() -> None:
    model = WithBuffers()
    reference = WithBuffers()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    with dsx.initialize(model=model, config=config(optimizer={"type": "SGD", "params": {"lr": 0.1}}))[0] as engine:
        for update in range(2):
            engine.train_batch(iter([awkward_batch(update, 0, 0)]))
            reference(*awkward_batch(update, 0, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        state = engine.full_state_dict()
    assert set(state) == set(reference.state_dict())
    assert weights_apart(state, reference.state_dict()) <= 1e-6
    assert state["order"].dtype == torch.int64


def test_the_module_is_whole_and_ones_own_after_closing() -> None:
    model = Awkward()
    engine = dsx.initialize(model=model, config=config(bf16={"enabled": True}))[0]
    engine.train_batch(iter([awkward_batch(0, 0, 0)]))
    engine.close()
    engine.close()
    loss = model(*(value.bfloat16() for value in awkward_batch(1, 0, 0)))
    loss.backward()
    assert model.leave.weight.grad is not None
    assert engine.module is model


def test_frozen_tied_and_unused_parameters_keep_their_nature() -> None:
    model = Awkward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with dsx.initialize(model=model, config=config())[0] as engine:
        steered(engine, awkward_batch, updates=2)
        after = engine.full_state_dict()
        assert model.tied.weight is model.twice.weight
        assert not model.frozen.requires_grad
    for name in ("frozen", "unused.weight", "unused.bias"):
        assert torch.equal(after[name], before[name])
    assert torch.equal(after["tied.weight"], after["twice.weight"])
    assert not torch.equal(after["tied.weight"], before["tied.weight"])
    assert after["empty"].shape == (0, 3)
