"""The section activation_checkpointing: within the engine's forward, and for the modules that it names."""

from __future__ import annotations

import pytest
import torch
from observe_helpers import LAYERS, MICRO, engine_of, train
from torch import Tensor, nn

import dsx
from dsx.activation import ActivationSettings, checkpoint
from dsx.activation.current import current
from dsx.errors import ConfigError, PluginError
from dsx.plugin.manager import plugin_manager


class Seen(nn.Module):
    """Checkpoints its layer itself and notes the settings it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen: list[ActivationSettings | None] = []
        self.calls = 0

    def inner(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(self.layer(x))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(current())
        return checkpoint(self.inner, x)


def engine_over(model: nn.Module, **section: object) -> dsx.Engine:
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        **({"activation_checkpointing": section} if section else {}),
    }
    return dsx.initialize(model=model, config=config, plugins=plugin_manager(block=["zero", "native"]))[0]


def test_checkpoint_finds_the_settings_of_the_engine_it_runs_in() -> None:
    model = Seen()
    with engine_over(model, cpu_checkpointing=True, profile=True) as engine:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            engine.backward(engine(torch.ones(MICRO, 4)).sum())
        engine.step()
        assert current() is None
    assert model.calls == 2  # computed again in backward
    assert model.seen == [ActivationSettings(offload=True, profile=True)]
    # Both the forward and the recomputation, which runs outside the engine's forward, are marked.
    assert [event.count for event in profiler.key_averages() if event.key == "dsx.checkpoint"] == [2]


def test_two_engines_do_not_see_each_others_settings() -> None:
    inner = Seen()
    with engine_over(Seen(), cpu_checkpointing=True) as one, engine_over(inner) as other:
        one(torch.ones(MICRO, 4))
        other(torch.ones(MICRO, 4))
        assert inner.seen == [None]


def test_a_forward_that_fails_leaves_no_settings() -> None:
    with engine_over(Seen(), cpu_checkpointing=True) as engine, pytest.raises(RuntimeError):
        engine(torch.ones(MICRO, 3))
    assert current() is None


@pytest.mark.parametrize(
    ("modules", "number", "expected"),
    [
        (["Linear"], None, [0, 1, 2]),
        (["0", "2"], None, [0, 2]),
        (["[01]"], None, [0, 1]),
        (["Linear"], 1, [0]),
        ([], None, []),
    ],
)
def test_named_modules_are_computed_again_and_nothing_else_changes(
    modules: list[str], number: int | None, expected: list[int]
) -> None:
    section = {"modules": modules, **({} if number is None else {"number_checkpoints": number})}
    with engine_of() as plain, engine_of(activation_checkpointing=section) as engine:
        calls = [0] * LAYERS  # before forward: torch ends a recomputation at the last tensor it needs
        for index, layer in enumerate(engine.module):
            layer.register_forward_pre_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
        assert train(engine) == train(plain)
        # The first layer's input needs no gradient, but its weights do.
        assert calls == [2 if index in expected else 1 for index in range(LAYERS)]
        states = zip(engine.full_state_dict().items(), plain.full_state_dict().items(), strict=True)
        assert all(ours == theirs and torch.equal(a, b) for (ours, a), (theirs, b) in states)
        assert [item.name for item in engine.plan.passes] == (["activation-checkpointing"] if modules else [])


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        ("method", "non_reentrent", "unknown activation_checkpoint 'non_reentrent' .did you mean 'non_reentrant'"),
        ("partitioner", "unifrom", "unknown partitioner 'unifrom' .did you mean 'uniform'"),
    ],
)
def test_an_unknown_method_or_partitioner_stops_before_training(key: str, name: str, said: str) -> None:
    for modules in ([], ["Linear"]):
        with pytest.raises(PluginError, match=said):
            engine_of(activation_checkpointing={"modules": modules, key: name}).__enter__()


@pytest.mark.parametrize("method", ["non_reentrant", "reentrant", "torch"])
def test_each_method_trains_alike(method: str) -> None:
    section = {"modules": ["Linear"], "number_checkpoints": 2, "method": method, "partitioner": "parameters"}
    with engine_of() as plain, engine_of(activation_checkpointing=section) as engine:
        assert train(engine, micro_batches=2) == train(plain, micro_batches=2)
        assert [layer.__class__ is nn.Linear for layer in engine.module] == [False, True, False]


def test_every_name_must_match_something() -> None:
    with pytest.raises(ConfigError, match="activation_checkpointing.modules: found 'Linaer'.*Linear"):
        engine_of(activation_checkpointing={"modules": ["Linear", "Linaer"]}).__enter__()
