"""Every optimizer gives in every stage what it gives on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_helpers import STAGES, config, engine_of, two_groups

from dsx.errors import DsxError
from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import plain, steered, weights_apart

Ranks = Callable[..., list[Any]]

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "Adam": {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1},
    "AdamW": {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adagrad": {"lr": 1e-2, "eps": 1e-4},
    "Lion": {"lr": 1e-3, "weight_decay": 0.1},
    "Lamb": {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1},
    "Muon": {"lr": 1e-2, "weight_decay": 0.1},
    "torch.Adam": {"lr": 1e-2, "eps": 1e-4, "amsgrad": True},
    "torch.Adagrad": {"lr": 1e-2, "eps": 1e-4},
    "RMSprop": {"lr": 1e-3, "eps": 1e-4, "centered": True, "momentum": 0.9},
    "NAdam": {"lr": 1e-2, "eps": 1e-4},
    "Adamax": {"lr": 1e-2, "eps": 1e-4},
    "Adafactor": {"lr": 1e-2},
}


def every_optimizer(names: tuple[str, ...]) -> dict[str, float]:
    gaps = {}
    for name in names:
        chosen = {"type": name, "params": dict(OPTIMIZERS[name])}
        alone = reference(chosen)
        for stage in STAGES:
            model = Awkward()
            with engine_of(model, config(stage, optimizer=chosen), model_parameters=two_groups(model)) as engine:
                gaps[f"{name} {stage=}"] = weights_apart(steered(engine, awkward_batch, updates=3).weights, alone)
    return gaps


def reference(chosen: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The optimizer by itself, on one process."""
    from dsx.optim.make import make_optimizer
    from dsx.plugin.manager import plugin_manager
    from dsx.registry.registry import Registry

    class Section:
        type = chosen["type"]
        params = chosen["params"]

    model = Awkward()
    groups = two_groups(model)
    names = {id(param): name for name, param in model.named_parameters()}
    for group in groups:
        group["params"] = [param for param in group["params"] if param.requires_grad]
        group["param_names"] = [names[id(param)] for param in group["params"]]
    optimizer: Any = make_optimizer(Section(), groups, registry=Registry(plugin_manager()))
    return plain(model, awkward_batch, optimizer=optimizer, updates=3, world=2).weights


@pytest.mark.parametrize("names", [tuple(OPTIMIZERS)[:7], tuple(OPTIMIZERS)[7:]], ids=["ours", "torch"])
def test_every_optimizer_by_name(names: tuple[str, ...], ranks: Ranks) -> None:
    for gaps in ranks(every_optimizer, names):
        assert {case: gap for case, gap in gaps.items() if not gap <= 1e-6} == {}


class Client(torch.optim.Optimizer):
    """A user's own, which looks at whole parameters: steps by the gradient over its largest element."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.numel():
                    param -= group["lr"] * param.grad / param.grad.abs().max().clamp(min=1e-3)


def client_cases(kind: str) -> list[float]:
    make: Callable[[Any], torch.optim.Optimizer]
    make = Client if kind == "own" else lambda params: torch.optim.AdamW(params, lr=1e-2, eps=1e-4)
    expected_model = Awkward()
    groups: Any = two_groups(expected_model)
    expected = plain(expected_model, awkward_batch, optimizer=make(groups), updates=3, world=2)
    gaps = []
    for stage in STAGES:
        model = Awkward()
        with engine_of(model, config(stage, optimizer=None), optimizer=make(two_groups(model))) as engine:
            gaps.append(steered(engine, awkward_batch, updates=3).apart(expected))
        model = Awkward()
        more = {"optimizer": make, "model_parameters": two_groups(model)}
        with engine_of(model, config(stage, optimizer=None), **more) as engine:
            gaps.append(steered(engine, awkward_batch, updates=3).apart(expected))
    return gaps


@pytest.mark.parametrize("kind", ["torch", "own"])
def test_a_clients_optimizer_as_object_and_as_function(kind: str, ranks: Ranks) -> None:
    for gaps in ranks(client_cases, kind):
        assert max(gaps) <= 1e-6, gaps


def client_schedules() -> list[tuple[list[list[float]], float]]:
    """Rates of four updates, and the distance of the weights, for a scheduler as object and as function, by stage."""

    def decay(index: int) -> float:
        return 1.0 / (1 + index)

    model = Awkward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    weights = []
    for update in range(4):
        (sum(model(*awkward_batch(update, 0, rank)) for rank in range(2)) / 2).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
    found = []
    for stage in STAGES:
        for as_function in (False, True):
            model = Awkward()
            client = torch.optim.SGD(model.parameters(), lr=0.2)
            scheduler: Any = torch.optim.lr_scheduler.LambdaLR(client, decay)
            if as_function:
                scheduler = _lambda_lr(decay)
            settings = config(stage, optimizer=None)
            with engine_of(model, settings, optimizer=client, lr_scheduler=scheduler) as engine:
                rates = []
                for update in range(4):
                    rates.append(engine.get_lr())
                    engine.backward(engine(*awkward_batch(update, 0, engine.data_group.rank)))
                    engine.step()
                found.append((rates, weights_apart(engine.full_state_dict(), weights[-1])))
    return found


def _lambda_lr(decay: Callable[[int], float]) -> Callable[[Any], Any]:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, decay)


def test_a_clients_schedule_as_object_and_as_function(ranks: Ranks) -> None:
    for found in ranks(client_schedules):
        for rates, gap in found:
            assert [rate for (rate,) in rates] == pytest.approx([0.2, 0.1, 0.2 / 3, 0.05])
            assert gap <= 1e-6


class Matrix(nn.Module):
    """One hidden matrix, and perhaps others around it, so that equal cuts of the buffer fall inside them."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])

    def forward(self, seed: Tensor) -> Tensor:
        dice = torch.Generator().manual_seed(int(seed))
        return sum((w * torch.randn(w.shape, generator=dice)).sum() for w in self.weights)  # type: ignore[return-value]


def seed_batch(update: int, turn: int, rank: int) -> tuple[Tensor]:
    return (torch.tensor(100 * update + 10 * turn + rank),)


def muon_cases(name: str) -> dict[str, tuple[float, float, float]]:
    """(distance to one rank, smallest and largest singular value of the update over the rate)."""
    params = {"lr": 0.1, "weight_decay": 0.0}
    if name == "Muon":
        params["momentum"] = 0.9
    chosen = {"type": name, "params": params}
    found = {}
    for shapes in (((6, 10),), ((6, 10), (5, 3), (7, 7))):
        alone = one_rank(shapes, chosen)
        for stage in STAGES:
            for scatter in (True, False):
                zero = {"reduce_scatter": scatter, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 1000}
                before = Matrix(shapes).state_dict()
                with engine_of(Matrix(shapes), config(stage, zero=zero, optimizer=chosen)) as engine:
                    engine.backward(engine(*seed_batch(0, 0, engine.data_group.rank)))
                    engine.step()
                    after = engine.full_state_dict()
                moved = (before["weights.0"] - after["weights.0"]) / 0.1
                values = torch.linalg.svdvals(moved)
                found[f"{shapes} {stage=} {scatter=}"] = (
                    weights_apart(after, alone),
                    float(values.max() / values.min()),
                    float(values.max()),
                )
    return found


def one_rank(shapes: tuple[tuple[int, ...], ...], chosen: Mapping[str, Any]) -> Mapping[str, Tensor]:
    from dsx.optim.muon import Muon

    model = Matrix(shapes)
    kinds = {"Muon": Muon, "torch.Muon": torch.optim.Muon}
    optimizer = kinds[chosen["type"]](model.parameters(), **chosen["params"])
    return plain(model, seed_batch, optimizer=optimizer, updates=1, world=2).weights


@pytest.mark.parametrize("name", ["Muon", "torch.Muon"])
def test_muon_sees_whole_matrices_in_every_stage(name: str, ranks: Ranks) -> None:
    """B30: one update of a 6 × 10 matrix, whose flat range would cross the border of two ranks, equals that of one
    process in every stage and both reduce modes; the update is orthogonal in stage 0 too."""
    raw = torch.linalg.svdvals(sum(torch.randn(6, 10, generator=torch.Generator().manual_seed(r)) for r in range(2)))  # type: ignore[arg-type]
    assert raw.max() / raw.min() > 2.5
    for found in ranks(muon_cases, name):
        assert len(found) == 16
        for gap, spread, largest in found.values():
            assert gap <= 1e-4
            assert spread < 2.0
            assert 0.3 < largest < 3.0


def mistakes() -> list[str]:
    messages = []
    for wrong in (
        {"type": "Adem", "params": {"lr": 1e-3}},
        {"type": "Adam", "params": {"lr": 1e-3, "beta": [0.9, 0.9]}},
        {"type": "LBFGS", "params": {"lr": 1e-3}},
        {"type": "SparseAdam", "params": {"lr": 1e-3}},
    ):
        try:
            with engine_of(Awkward(), config(2, optimizer=wrong)):
                pass
        except DsxError as error:
            messages.append(str(error))
    return messages


def test_optimizers_that_cannot_run_are_refused() -> None:
    unknown, params, closure, sparse = mistakes()
    assert "'adem'" in unknown.lower()
    assert "adam" in unknown.lower()
    assert "'betas'" in params
    assert "closure" in closure
    assert "sparse" in sparse
