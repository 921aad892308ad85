"""Gradients add up, are read, written and clipped by name; boundaries are counted by the engine or by hand."""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dsx
from dsx.engine.engine import Engine
from dsx.errors import EngineError
from dsx.plugin import API_VERSION, Family, PluginSpec, hookimpl
from dsx.testing.awkward import MICRO, Awkward, awkward_batch
from dsx.testing.parity import plain, steered, weights_apart

Ranks = Callable[..., list[Any]]
SGD = {"type": "SGD", "params": {"lr": 0.1}}


def engine_of(model: nn.Module, *, plugins: Any = (), model_parameters: Any = None, **more: Any) -> Engine:
    settings = {"train_micro_batch_size_per_gpu": MICRO, "optimizer": SGD, **more}
    engine: Engine = dsx.initialize(model=model, model_parameters=model_parameters, config=settings, plugins=plugins)[0]
    return engine


def stepped(losses: Callable[[nn.Module], Iterator[Tensor]]) -> dict[str, Tensor]:
    """The awkward model's weights after one plain SGD step on these losses."""
    model = Awkward()
    for loss in losses(model):
        loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return dict(model.state_dict())


class TwoHeads(nn.Module):
    """Uses one of its heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Linear(5, 7)
        self.heads = nn.ModuleList([nn.Linear(7, 2), nn.Linear(7, 2)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        out: Tensor = self.heads[head](torch.tanh(self.body(x))).square().mean()
        return out


def test_a_head_that_is_not_used_is_left_alone() -> None:
    """B20: weights, moments and counters of the idle head stay; so does the norm without it."""
    adam = {"type": "Adam", "params": {"lr": 0.01, "adam_w_mode": False}}

    def batch(update: int, turn: int, rank: int) -> tuple[Tensor, int]:
        return awkward_batch(update, turn, rank)[0], update % 2

    model = TwoHeads()
    expected = plain(model, batch, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), updates=4)
    with engine_of(TwoHeads(), optimizer=adam) as engine:
        course = steered(engine, batch, updates=4)
        assert course.apart(expected) <= 1e-6
        assert engine.driver.steps["heads.0.weight"] == engine.driver.steps["heads.1.weight"] == 2
        assert engine.driver.steps["body.weight"] == 4


@pytest.mark.parametrize("by_loss", [False, True])
def test_several_backwards_before_a_step_add_up(by_loss: bool) -> None:
    """B23: three losses, three backwards, one step: the update uses the sum."""
    expected = stepped(lambda model: (model(*awkward_batch(part, 0, 0)) * (part + 1) for part in range(3)))
    with engine_of(Awkward()) as engine:
        for part in range(3):
            loss = engine(*awkward_batch(part, 0, 0)) * (part + 1)
            loss.backward() if by_loss else engine.backward(loss)
        engine.step()
        assert weights_apart(engine.full_state_dict(), expected) <= 1e-6


def without_sync() -> float:
    with engine_of(Awkward(), gradient_accumulation_steps=4) as engine:
        expected = steered(engine, awkward_batch, updates=2)
    with engine_of(Awkward(), gradient_accumulation_steps=4) as engine:
        for update, turn in itertools.product(range(2), range(4)):
            batch = awkward_batch(update, turn, engine.data_group.rank)
            if turn < 3:
                with engine.no_sync():
                    engine.backward(engine(*batch))
            else:
                engine.backward(engine(*batch))
            engine.step()
        return weights_apart(engine.full_state_dict(), expected.weights)


def test_no_sync_moves_no_number(ranks: Ranks) -> None:
    """B24: three of four micro-steps within no_sync give the same result."""
    assert ranks(without_sync) == [0.0, 0.0]


def test_a_step_within_no_sync_is_an_error_that_loses_nothing() -> None:
    expected = stepped(lambda model: iter([model(*awkward_batch(0, 0, 0))]))
    with engine_of(Awkward()) as engine:
        with engine.no_sync():
            engine.backward(engine(*awkward_batch(0, 0, 0)))
            with pytest.raises(EngineError, match="no_sync"):
                engine.step()
        engine.step()
        assert weights_apart(engine.full_state_dict(), expected) <= 1e-6


def test_groups_keep_their_own_rate_and_decay(tmp_path: Any) -> None:
    """B25: groups of very unequal size, one empty; their settings survive saving and loading."""

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        named = dict(model.named_parameters())
        few = named.pop("scale")
        return [
            {"params": list(named.values()), "lr": 0.1, "weight_decay": 0.0},
            {"params": [], "lr": 7.0},
            {"params": [few], "lr": 0.01, "weight_decay": 0.1},
        ]

    reference = Awkward()
    optimizer = torch.optim.SGD([group for group in groups(reference) if group["params"]], lr=1.0)
    expected = plain(reference, awkward_batch, optimizer=optimizer, updates=3)
    model = Awkward()
    with engine_of(model, model_parameters=groups(model)) as engine:
        assert steered(engine, awkward_batch, updates=3).apart(expected) <= 1e-6
        engine.optimizer.param_groups[2]["lr"] = 0.5
        engine.save_checkpoint(tmp_path)
    model = Awkward()
    with engine_of(model, model_parameters=groups(model)) as engine:
        engine.load_checkpoint(tmp_path)
        settings = [(group["lr"], group["weight_decay"]) for group in engine.optimizer.param_groups]
        assert settings == [(0.1, 0.0), (7.0, 0.0), (0.5, 0.1)]


def drift(precision: str) -> list[float]:
    with engine_of(Awkward(), gradient_accumulation_steps=3, bf16={"enabled": precision == "bf16"}) as engine:
        return list(steered(engine, awkward_batch, updates=5).norms)


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-6), ("bf16", 2e-2)])
def test_norms_under_accumulation(precision: str, near: float, ranks: Ranks) -> None:
    """B26: the norm of the mean gradient over three micro-batches of two ranks, for five updates, is that of plain
    PyTorch in the same precision."""
    model = Awkward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    expected = plain(model, awkward_batch, optimizer=optimizer, updates=5, accumulation=3, world=2, dtype=dtype)
    for norms in ranks(drift, precision):
        assert norms == pytest.approx(expected.norms, rel=near)


class Expert(nn.Module):
    """An expert of this rank, and a dense part. Gradients are what the batch says."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.expert = nn.Parameter(torch.zeros(3))
        if dense:
            self.dense = nn.Parameter(torch.zeros(5))

    def forward(self, expert: float, dense: float) -> Tensor:
        loss = self.expert[0] * expert
        return loss + self.dense[3] * dense if hasattr(self, "dense") else loss


def expert_plugin() -> types.ModuleType:
    """Says that the expert is another one on each data rank."""
    module = types.ModuleType("fake_experts")
    spec = PluginSpec(name="experts", api=API_VERSION, summary="made for a test")
    module.dsx_plugin = hookimpl(lambda: spec)  # type: ignore[attr-defined]

    def dsx_param_families() -> Iterator[Family]:
        yield Family("expert", lambda name, param: name == "expert", ("data",), reduce_over=(), shard_over=())

    module.dsx_param_families = hookimpl(dsx_param_families)  # type: ignore[attr-defined]
    return module


def owners(gradients: tuple[float, float]) -> list[tuple[float, float]]:
    """(norm, what the expert moved by), without and with a dense part."""
    found = []
    for dense in (False, True):
        with engine_of(Expert(dense=dense), plugins=[expert_plugin()]) as engine:
            own = gradients[engine.data_group.rank]
            engine.backward(engine(2 * own, 12.0))  # one of two losses that are averaged
            engine.step()
            found.append((engine.get_global_grad_norm(), -float(engine.module.expert[0].detach())))
    return found


@pytest.mark.parametrize("gradients", [(3.0, 4.0), (4.0, 3.0), (5.0, 0.0)])
def test_the_norm_counts_each_owner_once(gradients: tuple[float, float], ranks: Ranks) -> None:
    """B27: experts of norm 3 and 4 on two ranks have the norm 5, with a dense gradient of 12 on both 13."""
    for rank, found in enumerate(ranks(owners, gradients)):
        assert [norm for norm, _ in found] == pytest.approx([5.0, 13.0], rel=1e-6)
        assert [moved for _, moved in found] == pytest.approx([0.1 * gradients[rank]] * 2)


class TwoTensors(nn.Module):
    """Gradients 3 and 4."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.ones(1))

    def forward(self) -> Tensor:
        return (3 * self.a + 4 * self.b).sum()


def test_norms_of_other_orders() -> None:
    """B28: orders 1, 2, 3 and infinity."""
    with engine_of(TwoTensors()) as engine:
        engine.backward(engine())
        norms = [engine.grad_norm(order) for order in (1.0, 2.0, 3.0, math.inf)]
        assert norms == pytest.approx([7.0, 5.0, 4.497941445, 4.0], rel=1e-6)
        for wrong in (0.0, -1.0, math.nan):
            with pytest.raises(EngineError, match="order"):
                engine.grad_norm(wrong)
        clipped = engine.clip(0.7, norm_type=1.0)
        assert (clipped.before, clipped.after) == pytest.approx((7.0, 0.7), rel=1e-5)
        assert engine.grad_norm() == pytest.approx(0.5, rel=1e-5)


def test_an_edited_gradient_is_the_one_that_counts() -> None:
    """B33: through the local and the whole setter; norm and update use what was written."""
    with engine_of(Awkward()) as engine:
        names = [name for name, param in engine.named_parameters() if param.requires_grad]
        before = engine.full_state_dict()
        for write in (
            lambda name: engine.set_local_gradient(name, 0.0),
            lambda name: engine.set_gradient(name, torch.zeros(before[name].shape)),
        ):
            engine.backward(engine(*awkward_batch(0, 0, 0)))
            for name in names:
                write(name)
            assert engine.grad_norm() == 0
            engine.step()
            assert engine.get_global_grad_norm() == 0
            assert weights_apart(engine.full_state_dict(), before) == 0
        engine.backward(engine(*awkward_batch(0, 0, 0)))
        part = engine.local_gradient("scale")
        part.mul_(0).add_(3.0)
        assert float(engine.gradient("scale")) == 3.0
        with pytest.raises(EngineError, match=r"shape \(2,\)"):
            engine.set_gradient("scale", torch.zeros(2))
        with pytest.raises(EngineError, match="'nowhere'"):
            engine.gradient("nowhere")
        with pytest.raises(EngineError, match="'frozen'"):
            engine.gradient("frozen")


def test_clipping_is_torchs() -> None:
    model = Awkward()
    model(*awkward_batch(0, 0, 0)).backward()
    before = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with engine_of(Awkward(), gradient_clipping=0.5) as engine:
        engine.backward(engine(*awkward_batch(0, 0, 0)))
        engine.step()
        assert engine.get_global_grad_norm() == pytest.approx(before, rel=1e-6)
        assert weights_apart(engine.full_state_dict(), dict(model.state_dict())) <= 1e-7


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_blocks_learn_as_others(use_reentrant: bool) -> None:
    class Recomputed(Awkward):
        def run(self, block: nn.Module, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(block, x, use_reentrant=use_reentrant)
            return out

    model = Awkward()
    expected = plain(model, awkward_batch, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), updates=3)
    with engine_of(Recomputed()) as engine:
        assert steered(engine, awkward_batch, updates=3).apart(expected) <= 1e-6


def test_boundaries_counted_by_the_user() -> None:
    model = Awkward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = plain(model, awkward_batch, optimizer=optimizer, updates=2, accumulation=2)
    with engine_of(Awkward(), gradient_accumulation_steps=2) as engine:
        for update, turn in itertools.product(range(2), range(2)):
            engine.set_gradient_accumulation_boundary(turn == 1)
            assert engine.is_gradient_accumulation_boundary() == (turn == 1)
            engine.backward(engine(*awkward_batch(update, turn, 0)))
            engine.step()
        engine.set_gradient_accumulation_boundary(None)
        assert weights_apart(engine.full_state_dict(), expected.weights) <= 1e-6
    with engine_of(Awkward(), gradient_accumulation_steps=2, managed_gradient_accumulation=False) as engine:
        for update in range(2):
            for turn in range(2):
                assert engine.is_gradient_accumulation_boundary()
                engine.backward(engine(*awkward_batch(update, turn, 0)))
            engine.step()
        assert weights_apart(engine.full_state_dict(), expected.weights) <= 1e-6


def test_boundaries_counted_by_the_engine() -> None:
    with engine_of(Awkward(), gradient_accumulation_steps=3) as engine:
        seen, updated = [], []
        for turn in range(6):
            seen.append(engine.is_gradient_accumulation_boundary())
            engine.backward(engine(*awkward_batch(0, turn, 0)))
            engine.step()
            updated.append(engine.was_step_applied)
        assert seen == updated == [False, False, True] * 2
        assert (engine.micro_steps, engine.global_steps, engine.global_samples) == (6, 2, 6 * MICRO)


def test_train_batch_and_eval_batch() -> None:
    model = Awkward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = plain(model, awkward_batch, optimizer=optimizer, updates=2, accumulation=2)
    with engine_of(Awkward(), gradient_accumulation_steps=2) as engine:
        losses = [float(engine.train_batch(awkward_batch(u, turn, 0) for turn in range(2))) for u in range(2)]
        assert losses == pytest.approx(expected.losses, abs=1e-6)
        engine.eval()
        held = float(engine.eval_batch(awkward_batch(9, turn, 0) for turn in range(2)))
        assert not engine.module.training
        with torch.no_grad():
            wanted = sum(float(model(*awkward_batch(9, turn, 0))) for turn in range(2)) / 2
        assert held == pytest.approx(wanted, abs=1e-6)
        assert weights_apart(engine.full_state_dict(), expected.weights) <= 1e-6
