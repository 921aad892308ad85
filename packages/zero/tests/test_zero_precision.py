"""Low precision and loss scales behave alike in every stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_helpers import BF16, STAGES, adamw, config, engine_of

import dsx
from dsx.engine.engine import Engine
from dsx.errors import PrecisionError
from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import plain, steered, weights_apart

Ranks = Callable[..., list[Any]]


def bf16_norms(world: int) -> list[tuple[list[float], list[float], bool, float]]:
    """By stage: (norms, the reference's, whether gradients are gone after each step, the loss scale)."""
    model = Awkward()
    expected = plain(model, awkward_batch, optimizer=adamw(model.parameters()), updates=3, world=world)
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, bf16=dict(BF16))) as engine:
            norms, gone = [], True
            for update in range(3):
                engine.backward(engine(*awkward_batch(update, 0, engine.data_group.rank)))
                engine.step()
                norms.append(engine.get_global_grad_norm())
                gone = gone and engine.grad_norm() == 0 and engine.gradient("leave.weight") is None
                gone = gone and all(param.grad is None for param in engine.parameters())
            found.append((norms, list(expected.norms), gone, engine.loss_scale))
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_bf16_norms_are_right_and_gradients_are_cleared(world: int, ranks: Ranks) -> None:
    """B12: bf16 divides by no loss scale, and clears gradients, in stage 0 as in the others."""
    for found in ranks(bf16_norms, world, world=world):
        for norms, expected, gone, scale in found:
            assert norms == pytest.approx(expected, rel=2e-2)
            assert gone
            assert scale == 1


class Weight(nn.Module):
    """One weight (or a few), whose gradient is what the batch says."""

    def __init__(self, numel: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(numel))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def small_gradients() -> list[tuple[float, float, str]]:
    """By stage: (mean, sum of a large and 255 small gradients; the precision line)."""
    found = []
    for stage in STAGES:
        settings = config(stage, bf16=dict(BF16), gradient_accumulation_steps=256)
        with engine_of(Weight(), settings) as engine:
            for turn in range(256):
                engine.backward(engine(torch.tensor([256.0 if turn == 0 else 1.0])))
                if turn < 255:
                    engine.step()
            mean = float(engine.gradient("weight"))
            line = engine.plan.precision.describe()
        with engine_of(Weight(), config(stage, bf16=dict(BF16))) as engine:
            for turn in range(256):
                engine.backward(engine(torch.tensor([256.0 if turn == 0 else 1.0])))
            found.append((mean, float(engine.gradient("weight")), line))
    return found


def test_small_gradients_are_not_lost_in_accumulation() -> None:
    """B14: 256 and 255 times 1 in bf16 have the mean 511/256 and the sum 511; the precision line says fp32."""
    for mean, total, line in small_gradients():
        assert mean == 511 / 256
        assert total == 511
        assert "gradients accumulate in fp32" in line


def narrow_accumulation() -> list[float]:
    found = []
    for stage in STAGES:
        settings = config(stage, bf16=dict(BF16), data_types={"grad_accum_dtype": "bf16"})
        with engine_of(Weight(), settings) as engine:
            for turn in range(256):
                engine.backward(engine(torch.tensor([256.0 if turn == 0 else 1.0])))
            found.append(float(engine.gradient("weight")))
    return found


def test_accumulation_in_bf16_is_what_it_says() -> None:
    """B14, the other way: who asks for bf16 sums gets them."""
    assert narrow_accumulation() == [256.0] * 4


OVERFLOWING: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 1e-2, "eps": 1e-4},
    "Muon": {"lr": 1e-2},
}


def dynamic(**more: Any) -> dict[str, Any]:
    return {"enabled": True, "initial_scale_power": 8, "hysteresis": 1, **more}


def state_of(engine: Engine) -> dict[str, Tensor]:
    """Whole weights, masters, moments and counters."""
    found = {f"weights {name}": value for name, value in engine.full_state_dict().items()}
    for piece in engine.driver.pieces:
        found[f"master {piece.name}"] = piece.master.detach().clone()
        if piece.publish is not None:
            found[f"low {piece.name}"] = piece.publish.clone()
        for key, value in engine.optimizer.state.get(piece.master, {}).items():
            found[f"{key} {piece.name}"] = torch.as_tensor(value).clone()
    found.update({f"steps {name}": torch.tensor(steps) for name, steps in engine.driver.steps.items()})
    return found


def overflow(name: str, by_loss: bool) -> list[tuple[bool, float, list[float], int]]:
    """By stage: (bit-equal over the overflow, distance to a run without it, scales, skipped)."""
    chosen = {"type": name, "params": dict(OVERFLOWING[name])}
    found = []
    for stage in STAGES:
        settings = config(stage, optimizer=chosen, fp16=dynamic())
        with engine_of(Awkward(), settings) as engine:
            for update in (0, 2, 3, 4):
                train(engine, update, by_loss)
            clean = state_of(engine)
        with engine_of(Awkward(), settings) as engine:
            scales = [engine.loss_scale]
            train(engine, 0, by_loss)
            before = state_of(engine)
            rank = engine.data_group.rank
            loss = engine(*awkward_batch(1, 0, rank)) * (math.inf if rank == engine.data_group.size - 1 else 1.0)
            loss.backward() if by_loss else engine.backward(loss)
            engine.step()
            assert not engine.was_step_applied
            scales.append(engine.loss_scale)
            after = state_of(engine)
            same = before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
            for update in (2, 3, 4):
                train(engine, update, by_loss)
            final = state_of(engine)
            gap = weights_apart(final, clean)
            found.append((same, gap, scales, engine.skipped_steps))
    return found


def train(engine: Engine, update: int, by_loss: bool) -> None:
    loss = engine(*awkward_batch(update, 0, engine.data_group.rank))
    loss.backward() if by_loss else engine.backward(loss)
    engine.step()
    assert engine.was_step_applied


@pytest.mark.parametrize(("name", "by_loss"), [("SGD", False), ("AdamW", True), ("Muon", False)])
def test_an_overflow_leaves_no_trace(name: str, by_loss: bool, ranks: Ranks) -> None:
    """B15: after a skipped update weights, moments and counters are bit-equal to before, on ranks that saw the inf and
    on others; the run goes on as one that never saw it (fp16 at half the scale rounds alike, as no bit is lost)."""
    for found in ranks(overflow, name, by_loss):
        for same, gap, scales, skipped in found:
            assert same
            assert gap <= 2e-3
            assert scales == [256, 128]
            assert skipped == 1


def resumed(folder: str) -> list[tuple[float, ...]]:
    """By stage: scales (unbroken after 3 and 4 updates, resumed likewise), and the restored parts of the scaler."""
    found = []
    for stage in STAGES:
        settings = config(stage, fp16=dynamic(loss_scale_window=4, hysteresis=3))
        path = f"{folder}/{stage}"
        with engine_of(Awkward(), settings) as engine:
            loss = engine(*awkward_batch(9, 0, engine.data_group.rank))
            engine.backward(loss * math.inf)
            engine.step()
            for update in range(3):
                train(engine, update, False)
            engine.save_checkpoint(path)
            three = engine.loss_scale
            state = engine.scaler.state()
            train(engine, 3, False)
            four = engine.loss_scale
        with engine_of(Awkward(), settings) as engine:
            engine.load_checkpoint(path)
            assert engine.scaler.state() == state
            again = engine.loss_scale
            train(engine, 3, False)
            found.append((three, four, again, engine.loss_scale, state["good"], state["hysteresis"]))
    return found


def test_the_loss_scale_goes_on_after_a_checkpoint(tmp_path: Path, ranks: Ranks) -> None:
    """B16: with a window of 4, three good updates, a save, a load and one good update double the scale; the count of
    good updates and the hysteresis used are restored."""
    for found in ranks(resumed, str(tmp_path)):
        assert found == [(256, 512, 256, 512, 3, 2)] * 4


class Exploding(nn.Module):
    """Its second layer always overflows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(5, 3)
        self.second = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.second(self.first(x).detach()).float() * math.inf).sum() + self.first(x).float().sum()


def endless() -> list[tuple[str, int, float, float]]:
    """By stage: (error, updates tried, scale at the end, what the weights moved)."""
    found = []
    for stage in STAGES:
        settings = config(stage, fp16=dynamic(initial_scale_power=2, skips_before_error=3))
        with engine_of(Exploding(), settings) as engine:
            before = engine.full_state_dict()
            tried, message = 0, ""
            while not message and tried < 50:
                engine.backward(engine(*awkward_batch(tried, 0, engine.data_group.rank)))
                tried += 1
                try:
                    engine.step()
                except PrecisionError as error:
                    message = str(error)
            found.append((message, tried, engine.loss_scale, weights_apart(engine.full_state_dict(), before)))
    return found


def test_skipping_without_end_is_an_error(ranks: Ranks) -> None:
    """B17: after three skips at the minimum scale an error names step, parameter and module; weights are unchanged."""
    for found in ranks(endless):
        for message, tried, scale, moved in found:
            assert "'second.weight'" in message
            assert "module 'second' (Linear)" in message
            assert "Update 4" in message
            assert tried == 5  # 4 -> 2 -> 1, then three at the minimum
            assert scale == 1
            assert moved == 0


def true_norms(clip: float) -> list[tuple[float, float, float]]:
    """By stage: (norm after the update that doubled the scale, the true one, the scale)."""
    model = Awkward()
    (sum(model(*awkward_batch(0, 0, rank)) for rank in range(2)) / 2).backward()
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    found = []
    for stage in STAGES:
        settings = config(stage, fp16=dynamic(loss_scale_window=1), gradient_clipping=clip)
        with engine_of(Awkward(), settings) as engine:
            engine.backward(engine(*awkward_batch(0, 0, engine.data_group.rank)))
            engine.step()
            found.append((engine.get_global_grad_norm(), norm, engine.loss_scale))
    return found


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_the_norm_is_unscaled_by_the_scale_it_was_made_with(clip: float, ranks: Ranks) -> None:
    """B18: the update that doubles the scale reports the true norm, not half or twice of it."""
    for found in ranks(true_norms, clip):
        for norm, expected, scale in found:
            assert norm == pytest.approx(expected, rel=2e-3)
            assert scale == 512


def static() -> list[tuple[float, float, list[float], bool]]:
    """By stage: (distance to scale 1, to plain PyTorch, scales seen, whether an overflow was skipped)."""
    model = Awkward()
    expected = plain(
        model, awkward_batch, optimizer=adamw(model.parameters()), updates=3, world=2, dtype=torch.float16, scale=128.0
    )
    found = []
    for stage in STAGES:
        courses, scales, skipped = [], [], False
        for scale in (1, 128):
            with engine_of(Awkward(), config(stage, fp16={"enabled": True, "loss_scale": scale})) as engine:
                courses.append(steered(engine, awkward_batch, updates=3))
                scales.append(engine.loss_scale)
                engine.backward(engine(*awkward_batch(3, 0, engine.data_group.rank)) * math.inf)
                engine.step()
                scales.append(engine.loss_scale)
                skipped = (
                    engine.skipped_steps == 1 and weights_apart(engine.full_state_dict(), courses[-1].weights) == 0
                )
        found.append(
            (weights_apart(courses[0].weights, courses[1].weights), courses[1].apart(expected), scales, skipped)
        )
    return found


def test_a_static_loss_scale(ranks: Ranks) -> None:
    """B93: a static scale of 128 trains as scale 1 does, stays 128, and an overflow skips the update alone."""
    for found in ranks(static):
        for gap, apart, scales, skipped in found:
            assert gap <= 2e-3
            assert apart <= 1e-3
            assert scales == [1, 1, 128, 128]
            assert skipped


def chained() -> list[tuple[float, float]]:
    """A model's outputs go into it again: with a scale, plain backward must scale once. (distance of gradients)."""

    def batch(rank: int) -> Tensor:
        return torch.randn(3, 7, generator=torch.Generator().manual_seed(rank))

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 7), nn.Tanh())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = [batch(rank).requires_grad_() for rank in range(2)]
    (sum(model(model(x[rank])).square().mean() for rank in range(2)) / 2).backward()
    expected = {name: param.grad for name, param in model.named_parameters()}
    found = []
    for stage in STAGES:
        own = nn.Sequential(nn.Linear(7, 7), nn.Tanh())
        own.load_state_dict(state)
        with engine_of(own, config(stage, fp16={"enabled": True, "loss_scale": 64})) as engine:
            rank = engine.data_group.rank
            given = batch(rank).requires_grad_()
            engine(engine(given)).float().square().mean().backward()
            gap = weights_apart({name: engine.gradient(name) for name in expected}, expected)
            found.append((gap, float((given.grad / 2 - x[rank].grad).abs().max())))
    return found


def test_plain_backward_scales_once_through_a_model_that_is_chained(ranks: Ranks) -> None:
    for found in ranks(chained):
        for gap, inputs in found:
            assert gap <= 1e-3
            assert inputs <= 1e-3


def autocast(dtype: str) -> list[tuple[float, float, bool]]:
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    model = Awkward()
    optimizer = adamw(model.parameters())
    losses = []
    for update in range(3):
        total = 0.0
        for rank in range(2):
            with torch.autocast("cpu", kind):
                loss = model(*awkward_batch(update, 0, rank)) / 2
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    found = []
    for stage in STAGES:
        settings = config(stage, torch_autocast={"enabled": True, "dtype": dtype}, fp16={"loss_scale": 1})
        with engine_of(Awkward(), settings) as engine:
            course = steered(engine, awkward_batch, updates=3)
            fp32 = all(param.dtype == torch.float32 for param in engine.parameters())
            gap = weights_apart(course.weights, dict(model.state_dict()))
            found.append((gap, max(abs(a - b) for a, b in zip(course.losses, losses, strict=True)), fp32))
    return found


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_autocast_is_torchs(dtype: str, ranks: Ranks) -> None:
    for found in ranks(autocast, dtype):
        for gap, losses, fp32 in found:
            assert gap <= 1e-6
            assert losses <= 1e-6
            assert fp32


def _note_dtypes(seen: list[torch.dtype]) -> Callable[..., None]:
    return lambda module, args, output: seen.extend([args[0].dtype, output.dtype])


def kept() -> list[tuple[set[str], float, float]]:
    """By stage: (names in fp32, distance to a model that does the same by hand, to stage 0)."""
    found: list[tuple[set[str], float, float]] = []
    first: Mapping[str, Tensor] = {}
    for stage in STAGES:
        settings = config(stage, bf16=dict(BF16), data_types={"keep_in_fp32_modules": ["norm", "leave"]})
        with engine_of(Awkward(), settings) as engine:
            course = steered(engine, awkward_batch, updates=3)
            first = first or course.weights
            names = {name for name, param in engine.named_parameters() if param.dtype == torch.float32}
            norms = [module for module in engine.module.modules() if isinstance(module, nn.LayerNorm)]
            seen: list[torch.dtype] = []
            for norm in norms:
                norm.register_forward_hook(_note_dtypes(seen))
            with torch.no_grad():
                engine(*awkward_batch(0, 0, 0))
            assert seen == [torch.float32, torch.bfloat16] * 2, seen
            found.append((names, course.losses[-1], weights_apart(course.weights, first)))
    return found


def test_modules_kept_in_fp32(ranks: Ranks) -> None:
    names = {f"blocks.{index}.norm.{part}" for index in range(2) for part in ("weight", "bias")}
    names |= {"leave.weight", "leave.bias"}
    for found in ranks(kept):
        for kept_names, loss, gap in found:
            assert kept_names == names
            assert math.isfinite(loss)
            assert gap == 0


def low_masters() -> list[tuple[Any, ...]]:
    found = []
    for stage in STAGES:
        section = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        with engine_of(Awkward(), config(stage, bf16=section)) as engine:
            course = steered(engine, awkward_batch, updates=3)
            masters = {piece.master.dtype for piece in engine.driver.pieces}
            moments = {
                value.dtype
                for state in engine.optimizer.state.values()
                for value in state.values()
                if isinstance(value, Tensor)
            }
            found.append((masters, moments, course.losses))
    return found


def test_masters_and_moments_in_bf16(ranks: Ranks) -> None:
    for found in ranks(low_masters):
        for masters, moments, losses in found:
            assert masters == moments == {torch.bfloat16}
            assert losses == pytest.approx(found[0][2], rel=2e-2)


def test_nothing_is_scaled_that_need_not_be() -> None:
    engine = dsx.initialize(model=Awkward(), config=config(0))[0]
    with engine:
        assert engine.loss_scale == 1
        assert not engine.scaler.active
