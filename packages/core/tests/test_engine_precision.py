"""Loss scales, skipped updates and low precision, as the engine keeps them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.engine.engine import Engine
from dsx.errors import PrecisionError
from dsx.testing.awkward import MICRO, Awkward, awkward_batch
from dsx.testing.parity import plain, weights_apart

Ranks = Callable[..., list[Any]]


def engine_of(model: nn.Module, **more: Any) -> Engine:
    settings = {
        "train_micro_batch_size_per_gpu": MICRO,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-4}},
        **more,
    }
    engine: Engine = dsx.initialize(model=model, config=settings)[0]
    return engine


def dynamic(**more: Any) -> dict[str, Any]:
    return {"enabled": True, "initial_scale_power": 8, "hysteresis": 1, **more}


def train(engine: Engine, update: int, factor: float = 1.0, *, by_loss: bool = False) -> None:
    loss = engine(*awkward_batch(update, 0, engine.data_group.rank)) * factor
    loss.backward() if by_loss else engine.backward(loss)
    engine.step()


def bf16_norms(world: int) -> tuple[list[float], list[float], bool]:
    model = Awkward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    expected = plain(model, awkward_batch, optimizer=optimizer, updates=3, world=world)
    norms, gone = [], True
    with engine_of(Awkward(), bf16={"enabled": True}) as engine:
        for update in range(3):
            train(engine, update)
            norms.append(engine.get_global_grad_norm())
            gone = gone and engine.grad_norm() == 0 and all(param.grad is None for param in engine.parameters())
        assert engine.loss_scale == 1
    return norms, list(expected.norms), gone


@pytest.mark.parametrize("world", [1, 2])
def test_bf16_norms_are_right_and_gradients_are_cleared(world: int, ranks: Ranks) -> None:
    """B12: bf16 without ZeRO divides by no loss scale; norms are within 2 %, and gradients are gone after each step."""
    for norms, expected, gone in [bf16_norms(1)] if world == 1 else ranks(bf16_norms, world):
        assert norms == pytest.approx(expected, rel=2e-2)
        assert gone


class Weight(nn.Module):
    """One weight, whose gradient is what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def test_small_gradients_are_not_lost_in_accumulation(capsys: pytest.CaptureFixture[str]) -> None:
    """B14: in bf16, 256 and 255 times 1 have the mean 511/256; the line printed at start says that sums are fp32."""
    with engine_of(Weight(), bf16={"enabled": True}, gradient_accumulation_steps=256) as engine:
        for turn in range(256):
            engine.backward(engine(torch.tensor([256.0 if turn == 0 else 1.0])))
            if turn < 255:
                engine.step()
        assert float(engine.gradient("weight")) == 511 / 256
    printed = capsys.readouterr()
    assert "gradients accumulate in fp32" in printed.out + printed.err


OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 1e-2, "eps": 1e-4},
    "Muon": {"lr": 1e-2},
    "RMSprop": {"lr": 1e-3, "momentum": 0.9},
}


def state_of(engine: Engine) -> dict[str, Tensor]:
    """Weights, masters, moments and counters, bit for bit."""
    found = {f"weights {name}": value for name, value in engine.full_state_dict().items()}
    found.update({f"low {name}": value.detach().clone() for name, value in engine.named_parameters()})
    for piece in engine.driver.pieces:
        for key, value in engine.optimizer.state.get(piece.master, {}).items():
            found[f"{key} {piece.name}"] = torch.as_tensor(value).clone()
    found.update({f"steps {name}": torch.tensor(steps) for name, steps in engine.driver.steps.items()})
    return found


@pytest.mark.parametrize("by_loss", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_leaves_no_trace(name: str, by_loss: bool) -> None:
    """B15: after an update skipped for an inf, all state is bit-equal to before, and the run goes on as one that never
    saw it, at half the scale."""
    settings = {"optimizer": {"type": name, "params": dict(OPTIMIZERS[name])}, "fp16": dynamic()}
    with engine_of(Awkward(), **settings) as engine:
        for update in (0, 2, 3, 4, 5, 6):
            train(engine, update, by_loss=by_loss)
        clean = engine.full_state_dict()
    with engine_of(Awkward(), **settings) as engine:
        train(engine, 0, by_loss=by_loss)
        before = state_of(engine)
        train(engine, 1, math.inf, by_loss=by_loss)
        after = state_of(engine)
        assert not engine.was_step_applied
        assert engine.skipped_steps == 1
        assert engine.loss_scale == 128
        assert before.keys() == after.keys()
        assert [key for key in before if not torch.equal(before[key], after[key])] == []
        for update in (2, 3, 4, 5, 6):
            train(engine, update, by_loss=by_loss)
        assert weights_apart(engine.full_state_dict(), clean) <= 2e-3
        assert engine.loss_scale == 128


def test_hysteresis_bears_one_overflow() -> None:
    """B15: with a hysteresis of 2 the first overflow is borne, the second halves the scale."""
    with engine_of(Awkward(), fp16=dynamic(hysteresis=2)) as engine:
        scales = []
        for update in range(3):
            train(engine, update, math.inf)
            scales.append(engine.loss_scale)
        assert scales == [256, 128, 64]


def test_the_loss_scale_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    """B16: window 4: three good updates, a save, a load, one good update: the scale doubles as in the unbroken run."""
    section = dynamic(loss_scale_window=4, hysteresis=3)
    with engine_of(Awkward(), fp16=section) as engine:
        train(engine, 9, math.inf)
        for update in range(3):
            train(engine, update)
        engine.save_checkpoint(tmp_path)
        state = engine.scaler.state()
        train(engine, 3)
        assert engine.loss_scale == 512
    with engine_of(Awkward(), fp16=section) as engine:
        engine.load_checkpoint(tmp_path)
        assert engine.scaler.state() == state
        assert (state["good"], state["hysteresis"], state["scale"]) == (3, 2, 256)
        train(engine, 3)
        assert engine.loss_scale == 512


def test_skipping_without_end_is_an_error() -> None:
    """B17: a loss that is always inf: after the set number of skips at the minimum an error names step, parameter and
    module; weights are unchanged, and the engine can go on."""
    with engine_of(Awkward(), fp16=dynamic(initial_scale_power=2, skips_before_error=3)) as engine:
        before = engine.full_state_dict()
        for update in range(4):
            train(engine, update, math.inf)
        with pytest.raises(PrecisionError) as caught:
            train(engine, 4, math.inf)
        message = str(caught.value)
        assert "3 updates in a row" in message
        assert "Update 4" in message
        assert "parameter 'stack', in the model itself (Awkward)" in message
        assert weights_apart(engine.full_state_dict(), before) == 0
        assert engine.loss_scale == 1
        assert engine.grad_norm() == 0
        train(engine, 5)
        assert engine.was_step_applied


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_the_norm_is_unscaled_by_the_scale_it_was_made_with(clip: float) -> None:
    """B18: the update that doubles the scale reports the true norm."""
    model = Awkward()
    model(*awkward_batch(0, 0, 0)).backward()
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    with engine_of(Awkward(), fp16=dynamic(loss_scale_window=1), gradient_clipping=clip) as engine:
        train(engine, 0)
        assert engine.loss_scale == 512
        assert engine.get_global_grad_norm() == pytest.approx(norm, rel=2e-3)


def test_a_static_loss_scale_stays() -> None:
    """B93: static 128 trains as scale 1 does; an overflow skips the update and leaves the scale."""
    weights = []
    for scale in (1, 128):
        with engine_of(Awkward(), fp16={"enabled": True, "loss_scale": scale}) as engine:
            for update in range(3):
                train(engine, update)
            weights.append(engine.full_state_dict())
            train(engine, 3, math.inf)
            assert not engine.was_step_applied
            assert engine.loss_scale == scale
            assert weights_apart(engine.full_state_dict(), weights[-1]) == 0
    assert weights_apart(*weights) <= 2e-3


def test_bf16_skips_an_update_that_is_not_finite() -> None:
    with engine_of(Awkward(), bf16={"enabled": True}) as engine:
        train(engine, 0)
        before = state_of(engine)
        train(engine, 1, math.nan)
        assert not engine.was_step_applied
        after = state_of(engine)
        assert [key for key in before if not torch.equal(before[key], after[key])] == []


def test_plain_backward_scales_once_through_a_model_that_is_chained() -> None:
    """Outputs go in again, and the inputs' own gradient is unscaled."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 7), nn.Tanh())
    reference = nn.Sequential(nn.Linear(7, 7), nn.Tanh())
    reference.load_state_dict(model.state_dict())
    x = torch.randn(3, 7).requires_grad_()
    reference(reference(x)).square().mean().backward()
    given = x.detach().clone().requires_grad_()
    with engine_of(model, fp16={"enabled": True, "loss_scale": 64}) as engine:
        engine(engine(given)).float().square().mean().backward()
        for name, param in reference.named_parameters():
            torch.testing.assert_close(engine.gradient(name), param.grad, atol=1e-3, rtol=1e-2)
    torch.testing.assert_close(given.grad, x.grad, atol=1e-3, rtol=1e-2)


def test_two_engines_of_other_scales_in_one_graph() -> None:
    """A critic's plain backward reaches the generator with the generator's own scale alone."""
    torch.manual_seed(2)
    generator, critic = nn.Linear(5, 7), nn.Linear(7, 1)
    copies = nn.Linear(5, 7), nn.Linear(7, 1)
    for copy, model in zip(copies, (generator, critic), strict=True):
        copy.load_state_dict(model.state_dict())
    x = torch.randn(3, 5)
    copies[1](copies[0](x)).mean().backward()
    with (
        engine_of(generator, fp16={"enabled": True, "loss_scale": 8}) as first,
        engine_of(critic, fp16={"enabled": True, "loss_scale": 32}) as second,
    ):
        second(first(x)).float().mean().backward()
        for engine, copy in zip((first, second), copies, strict=True):
            for name, param in copy.named_parameters():
                torch.testing.assert_close(engine.gradient(name), param.grad, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_torchs(dtype: torch.dtype) -> None:
    model = Awkward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    section = {"enabled": True, "dtype": "bf16" if dtype == torch.bfloat16 else "fp16"}
    with engine_of(Awkward(), torch_autocast=section, fp16={"loss_scale": 1}) as engine:
        for update in range(3):
            train(engine, update)
            with torch.autocast("cpu", dtype):
                loss = model(*awkward_batch(update, 0, 0))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert all(param.dtype == torch.float32 for param in engine.parameters())
        assert weights_apart(engine.full_state_dict(), dict(model.state_dict())) <= 1e-6


def test_modules_kept_in_fp32() -> None:
    section = {"keep_in_fp32_modules": ["norm"]}
    with engine_of(Awkward(), bf16={"enabled": True}, data_types=section) as engine:
        dtypes = {name: param.dtype for name, param in engine.named_parameters()}
        train(engine, 0)
        assert engine.was_step_applied
        assert math.isfinite(engine.get_global_grad_norm() or math.nan)
    kept = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert kept == {f"blocks.{index}.norm.{part}" for index in range(2) for part in ("weight", "bias")}


def test_batch_norm_trains_in_low_precision() -> None:
    """Batch normalisation keeps fp32 weights beside its fp32 statistics, in a model of bf16 or fp16."""
    for mode in ("bf16", "fp16"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        config = {
            "train_micro_batch_size_per_gpu": 6,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            mode: {"enabled": True},
        }
        with dsx.initialize(model=model, config=config)[0] as engine:
            before = engine.full_state_dict()
            engine.backward(engine(torch.randn(6, 4)).float().square().mean())
            engine.step()
            after = engine.full_state_dict()
            assert model[1].weight.dtype == torch.float32
            assert model[0].weight.dtype != torch.float32
            assert not torch.equal(before["1.weight"], after["1.weight"])
            assert not torch.equal(before["0.weight"], after["0.weight"])
