"""An engine goes on from its checkpoint as if it had never stopped: scale, rates, counters, the caller's own state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.errors import CheckpointError, EngineError

ADAM = {"type": "Adam", "params": {"lr": 0.01}}


def net(seed: int = 0, *, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), norm(16), nn.ReLU(), nn.Linear(16, 4))


def engine_of(model: nn.Module, **config: Any) -> dsx.Engine:
    options = {key: config.pop(key) for key in ("optimizer_object", "lr_scheduler", "training_data") if key in config}
    if "optimizer_object" in options:
        options["optimizer"] = options.pop("optimizer_object")
    else:
        config.setdefault("optimizer", ADAM)
    return dsx.initialize(model=model, config={"train_micro_batch_size_per_gpu": 4, **config}, **options)[0]


def update(engine: dsx.Engine, number: int, *, factor: float = 1.0) -> None:
    numbers = torch.Generator().manual_seed(number)
    for _ in range(engine.gradient_accumulation_steps()):
        inputs, targets = torch.randn(4, 8, generator=numbers), torch.randn(4, 4, generator=numbers)
        engine.backward(((engine(inputs).float() - targets) ** 2).mean() * factor)
        engine.step()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def test_the_loss_scale_and_its_count_go_on(tmp_path: Path) -> None:
    """B16: window 4; three good updates, save, load, a fourth: the scale doubles, as in the unbroken run."""
    fp16 = {"enabled": True, "loss_scale_window": 4, "initial_scale_power": 8, "hysteresis": 3}
    unbroken = engine_of(net(norm=nn.LayerNorm), fp16=fp16)
    for number in range(3):
        update(unbroken, number)
    update(unbroken, 3, factor=float("inf"))  # uses up hysteresis, and the count begins anew
    for number in range(4, 7):
        update(unbroken, number)
    unbroken.save_checkpoint(tmp_path)
    assert unbroken.skipped_steps == 1
    resumed = engine_of(net(1, norm=nn.LayerNorm), fp16=fp16)
    resumed.load_checkpoint(tmp_path)
    assert resumed.skipped_steps == 1
    assert resumed.scaler.state() == unbroken.scaler.state()
    scale = unbroken.loss_scale
    for engine in (unbroken, resumed):
        update(engine, 7)
        assert engine.loss_scale == 2 * scale
        update(engine, 8, factor=float("inf"))
        update(engine, 9, factor=float("inf"))
    assert resumed.scaler.state() == unbroken.scaler.state()
    assert equal(resumed.full_state_dict(), unbroken.full_state_dict())


def _client_lambda(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda index: 1.0 / (1 + index))
    return {"optimizer_object": optimizer, "lr_scheduler": schedule}


def _client_callables(model: nn.Module) -> dict[str, Any]:
    return {
        "optimizer_object": lambda params: torch.optim.RMSprop(params, lr=0.01),
        "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    }


def _configured(model: nn.Module) -> dict[str, Any]:
    schedule = {
        "type": "WarmupDecayLR",
        "params": {"warmup_num_steps": 6, "total_num_steps": 30, "warmup_max_lr": 0.05},
    }
    return {"scheduler": schedule}


@pytest.mark.parametrize("owner", [_client_lambda, _client_callables, _configured])
def test_rates_go_on_whoever_owns_the_schedule(owner: Callable[[nn.Module], dict[str, Any]], tmp_path: Path) -> None:
    """B11: ten updates, save, load into a fresh engine, ten more: rates and weights of twenty unbroken ones."""
    model = net()
    unbroken = engine_of(model, **owner(model))
    rates = []
    for number in range(20):
        rates.append(unbroken.get_lr())
        update(unbroken, number)
        if number == 9:
            unbroken.save_checkpoint(tmp_path)
    model = net(3)
    resumed = engine_of(model, **owner(model))
    resumed.load_checkpoint(tmp_path)
    for number in range(10, 20):
        assert resumed.get_lr() == rates[number]
        update(resumed, number)
    assert equal(resumed.full_state_dict(), unbroken.full_state_dict())
    assert resumed.get_lr() == unbroken.get_lr()


def test_a_schedule_can_be_left_as_it_is(tmp_path: Path) -> None:
    engine = engine_of(net(), **_configured(net()))
    for number in range(4):
        update(engine, number)
    engine.save_checkpoint(tmp_path)
    other = engine_of(net(), **_configured(net()))
    first = other.get_lr()
    other.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert other.get_lr() == first
    assert other.global_steps == 4


def test_counters_buffers_and_client_state_come_back(tmp_path: Path) -> None:
    engine = engine_of(net(), gradient_accumulation_steps=2)
    for number in range(3):
        update(engine, number)
    mine = {"epoch": 3, "best": 0.25, "names": ["a", "b"], "nested": {"t": torch.arange(3), "none": None}, "flag": True}
    path = engine.save_checkpoint(tmp_path, client_state=mine)
    assert path == tmp_path / "global_step3"
    assert (tmp_path / "latest").read_text().strip() == "global_step3"
    other = engine_of(net(5), gradient_accumulation_steps=2)
    where, client = other.load_checkpoint(tmp_path)
    assert where == path
    assert client["nested"].pop("t").equal(mine["nested"].pop("t"))
    assert client == mine
    counters = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
    assert [getattr(other, name) for name in counters] == [3, 3 * 2 * 4, 0, 6]
    assert other.module[1].num_batches_tracked.item() == 6
    assert equal(other.full_state_dict(), engine.full_state_dict())


def test_tags_are_kept_apart_and_latest_can_be_left(tmp_path: Path) -> None:
    engine = engine_of(net())
    saved = {}
    for number, tag in enumerate(("one", "two", "three")):
        update(engine, number)
        engine.save_checkpoint(tmp_path, tag, save_latest=tag != "three")
        saved[tag] = engine.full_state_dict()
    assert (tmp_path / "latest").read_text().strip() == "two"
    for tag in ("three", "one", None):
        engine.load_checkpoint(tmp_path, tag)
        assert equal(engine.full_state_dict(), saved[tag or "two"])
    engine.save_checkpoint(tmp_path, "one")
    engine.load_checkpoint(tmp_path, "one")
    assert equal(engine.full_state_dict(), saved["two"]), "a tag that exists is replaced"


def test_a_loader_goes_on_where_it_was(tmp_path: Path) -> None:
    data = [(torch.full((8,), float(i)), torch.zeros(4)) for i in range(24)]

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.seen: list[float] = []

        def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
            self.seen += inputs[:, 0].tolist()
            return ((self.net(inputs) - targets) ** 2).mean()

    unbroken = engine_of(Loss(), training_data=data)
    for _ in range(4):
        unbroken.train_batch()
    unbroken.save_checkpoint(tmp_path)
    before = len(unbroken.module.seen)
    for _ in range(5):
        unbroken.train_batch()
    resumed = engine_of(Loss(), training_data=data)
    resumed.load_checkpoint(tmp_path)
    for _ in range(5):
        resumed.train_batch()
    assert resumed.module.seen == unbroken.module.seen[before:]
    assert equal(resumed.full_state_dict(), unbroken.full_state_dict())


@pytest.mark.parametrize("method", ["save", "load"])
def test_a_failing_save_or_load_leaves_a_working_engine(method: str, tmp_path: Path) -> None:
    engine = engine_of(net())
    update(engine, 0)
    engine.save_checkpoint(tmp_path, "good")
    reference = engine_of(net())
    update(reference, 0)
    if method == "save":
        with pytest.raises(CheckpointError):
            engine.save_checkpoint(tmp_path, "bad", client_state={"function": lambda: None})
        assert not (tmp_path / "bad").exists()
    else:
        with pytest.raises(CheckpointError, match="good"):
            engine.load_checkpoint(tmp_path, "absent")
        with pytest.raises(CheckpointError):
            engine.load_checkpoint(tmp_path / "nowhere")
    assert (tmp_path / "latest").read_text().strip() == "good"
    for each in (engine, reference):
        update(each, 1)
    assert equal(engine.full_state_dict(), reference.full_state_dict())


def test_gradients_in_progress_are_dropped_by_a_load(tmp_path: Path) -> None:
    engine = engine_of(net())
    update(engine, 0)
    engine.save_checkpoint(tmp_path)
    update(engine, 1)
    after = engine.full_state_dict()
    engine.backward(engine(torch.randn(4, 8)).sum() * 100)
    engine.load_checkpoint(tmp_path)
    update(engine, 1)
    found = engine.full_state_dict()
    assert all(found[name].equal(after[name]) for name in found if "running" not in name and "tracked" not in name)


def test_a_closed_engine_refuses(tmp_path: Path) -> None:
    engine = engine_of(net())
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.save_checkpoint(tmp_path)
    with pytest.raises(EngineError, match="closed"):
        engine.load_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []
