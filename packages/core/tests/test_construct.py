"""Models built as descriptions get the values that their constructors asked for, once they are placed."""

from __future__ import annotations

import copy
import gc
import math
import resource
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.errors import EngineError

CONFIG = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}


def values_of(build: Callable[[], nn.Module], **config: Any) -> dict[str, Tensor]:
    """State of a model that was built as a description and placed."""
    with dsx.construct({**CONFIG, **config}):
        model = build()
    with dsx.initialize(model=model, config={**CONFIG, **config})[0] as engine:
        return engine.full_state_dict()


class Deterministic(nn.Module):
    """Every way to give a parameter values that need no random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(3))
        self.counted = nn.Parameter(torch.arange(12.0).view(3, 4))
        self.constant = nn.Parameter(torch.empty(2, 3))
        nn.init.constant_(self.constant, 0.25)
        self.row = nn.Parameter(torch.empty(4, 5))
        with torch.no_grad():
            self.row.fill_(2.0)
            self.row[1].zero_()
            self.row[:, 2] = -1.0
            self.row.t()[3].mul_(7.0)
            self.row.view(-1)[0] = 9.0
        self.eye = nn.Parameter(torch.empty(3, 5))
        nn.init.eye_(self.eye)
        self.dirac = nn.Parameter(torch.empty(2, 2, 3))
        nn.init.dirac_(self.dirac)
        self.copied = nn.Parameter(torch.empty(2, 2))
        self.copied.data.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.replaced = nn.Parameter(torch.empty(2))
        self.replaced.data = torch.tensor([8.0, 9.0])
        self.scaled = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.scaled.data.div_(self.scaled.detach().norm(dim=1, keepdim=True))
        self.scaled.data = self.scaled.data * 2
        self.halves = nn.Parameter(torch.full((3,), 1 / 3, dtype=torch.bfloat16))
        self.halves.data.mul_(3)
        self.out = nn.Parameter(torch.empty(4))
        torch.arange(4.0, out=self.out.data)
        self.out.data += torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.out.data[1:3].mul_(torch.tensor(2.0))
        self.packed = nn.Parameter(torch.zeros(3, 5, 7))
        self.packed.data[1, 2:4].fill_(5.0)
        self.scalar = nn.Parameter(torch.tensor(3.5))
        self.empty = nn.Parameter(torch.empty(0, 2))
        self.norm = nn.LayerNorm(4)
        self.tied = nn.Linear(4, 4)
        nn.init.eye_(self.tied.weight)
        nn.init.zeros_(self.tied.bias)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.tied.weight
        self.second.bias = None
        self.frozen = nn.Parameter(torch.full((3,), 6.0), requires_grad=False)
        self.long = nn.Parameter(torch.arange(3), requires_grad=False)
        self.apply(self.custom)

    @staticmethod
    def custom(module: nn.Module) -> None:
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 1.5)


def test_deterministic_values_are_the_constructors() -> None:
    wanted = Deterministic().state_dict()
    found = values_of(Deterministic)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].equal(value.float() if value.is_floating_point() else value), name


def test_nothing_is_allocated_within() -> None:
    with dsx.construct(CONFIG):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model = nn.ModuleList(nn.Linear(1 << 14, 1 << 14) for _ in range(8))  # eight gigabytes
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 17, "in KiB"
    assert all(param.is_meta for param in model.parameters())
    assert not nn.Linear(2, 2).weight.is_meta, "afterwards models are as ever"
    del model
    gc.collect()  # address space, too, may keep a later test from forking


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(200, 300)
        self.embedding = nn.Embedding(50, 200, padding_idx=3)
        self.normal = nn.Parameter(torch.empty(100, 100))
        nn.init.normal_(self.normal, mean=2.0, std=0.5)
        self.truncated = nn.Parameter(torch.empty(100, 100))
        nn.init.trunc_normal_(self.truncated, std=1.0, a=-0.5, b=0.5)
        self.xavier = nn.Parameter(torch.empty(100, 200))
        nn.init.xavier_uniform_(self.xavier)
        self.kaiming = nn.Parameter(torch.empty(100, 200))
        nn.init.kaiming_normal_(self.kaiming, nonlinearity="relu")
        self.truncated_narrow = nn.Parameter(torch.empty(100, 100))
        nn.init.trunc_normal_(self.truncated_narrow.data, std=1.0, a=1.5, b=1.9)
        self.orthogonal = nn.Parameter(torch.empty(100, 100))
        nn.init.orthogonal_(self.orthogonal.data, gain=2.0)
        self.sparse = nn.Parameter(torch.empty(100, 100))
        nn.init.sparse_(self.sparse, sparsity=0.5)
        self.later = nn.Linear(100, 100)
        self.apply(self.custom)

    @staticmethod
    def custom(module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.in_features == 100:
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


def test_random_values_have_the_constructors_distribution() -> None:
    torch.manual_seed(0)
    plain = Random().state_dict()
    found = values_of(Random)
    for name, value in plain.items():
        ours = found[name]
        error = 6 / math.sqrt(value.numel())
        assert abs(float(ours.mean() - value.mean())) <= error * float(value.std(correction=0)) + 1e-7, name
        assert (
            abs(float(ours.std(correction=0) - value.std(correction=0)))
            <= error * float(value.std(correction=0)) + 1e-7
        ), name
        if value.numel() >= 10000:
            # The quantiles too: the shape of the distribution, not its first two moments alone.
            at = torch.linspace(0.05, 0.95, 25)
            spread = float(value.std())
            assert float((ours.flatten().quantile(at) - value.flatten().quantile(at)).abs().max()) < 0.15 * spread, name
    assert not found["embedding.weight"][3].any()
    assert float(found["truncated"].abs().max()) <= 0.5
    assert 1.5 <= float(found["truncated_narrow"].min()) <= float(found["truncated_narrow"].max()) <= 1.9
    square = found["orthogonal"] @ found["orthogonal"].t()
    assert float((square - 4 * torch.eye(100)).abs().max()) < 1e-4
    assert int((found["sparse"] == 0).sum()) == 5000
    assert not found["later.bias"].any()


def test_each_parameter_draws_its_own_numbers_from_the_seed_alone() -> None:
    def build() -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})

    torch.manual_seed(1)
    first = values_of(build)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = values_of(build)
    assert torch.get_rng_state().equal(before), "the caller's random numbers are not used up"
    other = values_of(build, seed=77)
    assert all(first[name].equal(second[name]) for name in first)
    assert not first["a.weight"].equal(first["b.weight"])
    assert not first["a.weight"].equal(other["a.weight"])


class Rotary(nn.Module):
    """Tables that the constructor computes, in fp32 and in the dtype of another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        inverse = 1.0 / (10000 ** (torch.arange(0, 64, 2).float() / 64))
        self.register_buffer("inverse", inverse, persistent=False)
        angles = torch.outer(torch.arange(4096, dtype=self.inverse.dtype), self.inverse)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("places", torch.arange(4096))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_buffers_are_made_at_once_as_they_are() -> None:
    """B35: dtype and values of a rotary table within the context and after it, also under bf16."""
    plain = Rotary()
    with dsx.construct({**CONFIG, "bf16": {"enabled": True}}):
        model = Rotary()
    for name, buffer in plain.named_buffers():
        assert model.get_buffer(name).equal(buffer), name
    with dsx.initialize(model=model, config={**CONFIG, "bf16": {"enabled": True}})[0] as engine:
        for name, buffer in plain.named_buffers():
            kept = engine.module.get_buffer(name)
            assert kept.dtype == buffer.dtype, name
            assert kept.equal(buffer), name


def _from_another(module: nn.Module) -> None:
    module.bias.data.copy_(module.weight[0] * 2)


def _looked_at(module: nn.Module) -> None:
    while float(module.weight.std()) > 0.1:
        module.weight.data.mul_(0.5)


def _second(module: nn.Module) -> None:
    module.other = nn.Parameter(module.weight.detach().clone())


def _foreach(module: nn.Module) -> None:
    torch._foreach_zero_([module.weight.data, module.bias.data])


def _resized(module: nn.Module) -> None:
    module.weight.data = torch.randn(5, 4)


def _buffer_from_parameter(module: nn.Module) -> None:
    module.register_buffer("mask", module.weight > 0)


@pytest.mark.parametrize(
    "unrecordable", [_from_another, _looked_at, _foreach, _resized, _buffer_from_parameter, _second]
)
def test_what_cannot_be_recorded_is_refused_and_never_lost(unrecordable: Callable[[nn.Module], None]) -> None:
    def build() -> nn.Module:
        module = nn.Linear(4, 4)
        unrecordable(module)
        return module

    with pytest.raises(EngineError, match=r"outside of dsx\.construct"):
        values_of(build)


def test_an_initialisation_after_the_block_is_refused_and_never_lost() -> None:
    with dsx.construct(CONFIG):
        model = nn.Sequential(nn.Linear(4, 4))
    nn.init.zeros_(model[0].weight)
    with pytest.raises(EngineError, match=r"parameter '0\.weight' was initialised after its dsx\.construct block"):
        dsx.initialize(model=model, config=CONFIG)


def test_copies_of_modules_are_described_on_their_own() -> None:
    def build() -> nn.Module:
        first = nn.Linear(3, 3)
        nn.init.constant_(first.weight, 2.0)
        second = copy.deepcopy(first)
        second.weight.data.mul_(4.0)
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        return nn.ModuleDict({"first": first, "second": second, "encoder": nn.TransformerEncoder(layer, 2)})

    found = values_of(build)
    assert bool((found["first.weight"] == 2.0).all())
    assert bool((found["second.weight"] == 8.0).all())
    assert bool((found["encoder.layers.1.norm1.weight"] == 1.0).all())
    assert 0 < float(found["encoder.layers.1.linear1.weight"].abs().max()) <= 1 / math.sqrt(8)


def test_models_on_the_meta_device_are_made_by_reset_parameters() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), nn.Linear(50, 4))
    with dsx.initialize(model=model, config=CONFIG)[0] as engine:
        found = engine.full_state_dict()
        assert 0 < float(found["0.weight"].abs().max()) <= 1 / math.sqrt(40)
        assert found["1.running_var"].equal(torch.ones(50))
        assert found["1.weight"].equal(torch.ones(50))
        engine.backward(engine(torch.randn(2, 40)).sum())
        engine.step()


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, device="meta"))


def test_a_meta_parameter_that_nothing_can_fill_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"'weight'.*module 'inner' \(Bare\).*dsx\.construct"):
        dsx.initialize(model=nn.ModuleDict({"inner": Bare()}), config=CONFIG)


def test_contexts_nest_and_engines_can_be_made_within() -> None:
    """B90: an engine made inside another model's context, and a plain model after it, are what they should be."""
    with dsx.construct(CONFIG):
        outer = nn.Linear(3, 3)
        with dsx.construct(CONFIG):
            inner = nn.Linear(2, 2)
            nn.init.constant_(inner.weight, 4.0)
        nn.init.constant_(outer.weight, 5.0)
        engine_inner = dsx.initialize(model=inner, config=CONFIG)[0]
        nn.init.constant_(outer.bias, 6.0)
    plain = nn.Linear(5, 5)
    engine_outer = dsx.initialize(model=outer, config=CONFIG)[0]
    assert not plain.weight.is_meta
    assert bool((engine_inner.full_state_dict()["weight"] == 4.0).all())
    assert bool((engine_outer.full_state_dict()["weight"] == 5.0).all())
    assert bool((engine_outer.full_state_dict()["bias"] == 6.0).all())
    for engine, width in ((engine_inner, 2), (engine_outer, 3)):
        engine.backward(engine(torch.ones(2, width)).sum())
        engine.step()
        engine.close()
    assert plain(torch.ones(2, 5)).shape == (2, 5)


class Kept(nn.Module):
    """Keeps references to its parameters besides the registered ones, as torch's recurrent modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x.view(2, 2, 4))[0]


def test_recurrent_modules_run_and_learn() -> None:
    with dsx.construct(CONFIG):
        model = Kept()
    with dsx.initialize(model=model, config=CONFIG)[0] as engine:
        before = engine.full_state_dict()
        engine.backward(engine(torch.ones(2, 8)).sum())
        engine.step()
        after = engine.full_state_dict()
        assert all(not before[name].equal(after[name]) for name in before)


def test_frozen_described_parameters_are_filled_and_nothing_of_the_recipe_stays() -> None:
    with dsx.construct(CONFIG):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False))
    with dsx.initialize(model=model, config=CONFIG)[0] as engine:
        for name, param in engine.named_parameters():
            assert param.isfinite().all(), name
            assert type(param) is nn.Parameter
            assert not hasattr(param, "recipe")
