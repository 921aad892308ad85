"""check_optimizer passes every optimizer that the core names, and finds each way of breaking a law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from dsx.errors import ConfigError
from dsx.optim.adam import Adam
from dsx.optim.sgd import SGD
from dsx.testing import check_optimizer

OURS: Mapping[str, Mapping[str, Any]] = {
    "Adam": {"betas": [0.9, 0.99]},
    "AdamW": {"state_dtype": "bf16"},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adagrad": {},
    "Lion": {"weight_decay": 0.1},
    "Lamb": {},
    "Muon": {"muon_lr": 0.02, "adam_lr": 0.001},
}
TORCHS = ("ASGD", "Adadelta", "torch.Adam", "torch.AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "torch.SGD")


@pytest.mark.parametrize("name", OURS)
def test_ours_pass(name: str) -> None:
    check_optimizer(name, params=OURS[name])


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_pass(name: str) -> None:
    check_optimizer(name)


def test_what_torchs_others_break_is_named_and_can_be_exempted() -> None:
    with pytest.raises(AssertionError, match="Rprop .* law 'zero rate': parameter layer0.weight changes with lr 0"):
        check_optimizer("Rprop")
    check_optimizer("Rprop", exempt=["zero rate"])
    with pytest.raises(AssertionError, match="law 'odd shapes': it raised ZeroDivisionError"):
        check_optimizer("Adafactor")
    check_optimizer("Adafactor", exempt=["odd shapes"])
    with pytest.raises(ValueError, match="exempt has zero: wanted names out of learns, same"):
        check_optimizer("Adam", exempt=["zero"])


def momentum_under_another_name(tensors: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr=lr, momentum=0.5)


def test_the_first_argument_may_have_any_name() -> None:
    check_optimizer(momentum_under_another_name)


class Plain(torch.optim.Optimizer):
    """A lawful optimizer of an outsider, with a momentum, in torch's form; what wrong ones change is a method."""

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.one(p, p.grad, group)

    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        mean = self.state[p].setdefault("mean", torch.zeros_like(p))
        mean.mul_(group["momentum"]).add_(grad)
        p.add_(self.direction(mean), alpha=-group["lr"])

    def direction(self, mean: Tensor) -> Tensor:
        return mean


class PlainByElement(Plain):
    ownership = "element"


@pytest.mark.parametrize("factory", [Plain, PlainByElement, lambda params, lr=0.05: Plain(params, lr)])
def test_an_outsiders_optimizer_passes(factory: Any) -> None:
    check_optimizer(factory, params={"lr": 0.05})


class Climbs(Plain):
    def direction(self, mean: Tensor) -> Tensor:
        return -mean


class Dithers(Plain):
    def direction(self, mean: Tensor) -> Tensor:
        return mean + 1e-3 * torch.rand_like(mean)


class Decays(Plain):
    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        super().one(p, grad, group)
        p.mul_(0.999)


class OneRate(Plain):
    """Takes the first group's rate for all."""

    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        super().one(p, grad, {**group, "lr": self.param_groups[0]["lr"]})


class NoRate(Plain):
    def __init__(self, params: Any, step_size: float = 0.1) -> None:
        torch.optim.Optimizer.__init__(self, params, {"step_size": step_size})


class DriftsOn(Plain):
    """Updates also what has no gradient, from its momentum."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None or p in self.state:
                    self.one(p, torch.zeros_like(p) if p.grad is None else p.grad, group)


class CountsOn(Plain):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for state in self.state.values():
            state["step"] = state.get("step", 0) + 1


class NoScalars(Plain):
    def direction(self, mean: Tensor) -> Tensor:
        return mean * (mean.flatten()[0] != torch.inf)


class Widens(Plain):
    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        super().one(p, grad, group)
        p.data = p.data.float()


class KeepsAside(Plain):
    """Its momentum is no part of its state."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.aside: dict[Tensor, Tensor] = {}

    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        mean = self.aside.setdefault(p, torch.zeros_like(p)).mul_(0.5).add_(grad)
        p.add_(mean, alpha=-group["lr"])


class KeepsObjects(Plain):
    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        super().one(p, grad, group)
        self.state[p]["note"] = ConfigError("no plain data")


class NormsByElement(PlainByElement):
    """Says that ranges can be updated alone, and looks at the whole."""

    def direction(self, mean: Tensor) -> Tensor:
        return mean / (1 + mean.norm())


class CountsCalls(Plain):
    """Counts calls of step, of which a driver makes one a bucket."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        count = self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] /= count
        super().step()
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


class SpoilsGradients(SGD):
    def update(self, pieces: Any, *, factor: float = 1.0) -> None:
        super().update(pieces, factor=factor)
        for piece in pieces:
            if piece.grad is not None:
                piece.grad.zero_()


class NoFactor(SGD):
    def update(self, pieces: Any, *, factor: float = 1.0) -> None:
        super().update(pieces)


class Unpublished(Adam):
    def update(self, pieces: Any, *, factor: float = 1.0) -> None:
        for piece in pieces:
            piece.publish = None if piece.publish is None else torch.zeros_like(piece.publish)
        super().update(pieces, factor=factor)
        for piece in pieces:
            piece.publish = None if piece.publish is None else torch.zeros_like(piece.publish)


class OtherUnderAnEngine(SGD):
    """Its engine's update is not its own step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().update([piece for piece in self._own_pieces() if piece.grad is not None], factor=0.5)


class MakesStateLate(Plain):
    """Has no momentum before its second step, so nothing that a checkpoint's could be loaded into."""

    def one(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        count = self.state[p]["count"] = self.state[p].get("count", 0) + 1
        if count > 1:
            super().one(p, grad, group)
        else:
            p.add_(grad, alpha=-group["lr"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Climbs, "law 'learns': 20 steps took the loss from"),
        (NoRate, "law 'learns': group 0 has no rate 'lr'"),
        (Dithers, "law 'same': parameter layer0.weight differs between two equal courses"),
        (Decays, "law 'zero rate': parameter layer0.weight changes with lr 0"),
        (OneRate, "law 'rates': parameter layer1.weight of two groups is not updated by its own group's rate"),
        (DriftsOn, "law 'absent gradient': after 2 steps a parameter without gradient is changed"),
        (CountsOn, "law 'absent gradient': after 2 steps the state of a parameter without gradient is changed"),
        (NoScalars, "law 'odd shapes': it raised IndexError"),
        (Widens, "law 'bf16'"),
        (KeepsAside, "law 'resumed': parameter layer0.weight goes on otherwise after a reload through pickle"),
        (KeepsObjects, "law 'resumed'"),
        (NormsByElement, "law 'pieces': parameter .* is updated otherwise in ranges than whole"),
        (CountsCalls, "law 'pieces': parameter .* when each parameter comes in its own call"),
        (SpoilsGradients, "law 'pieces': parameter .* has another gradient after the update"),
        (NoFactor, "law 'factor': parameter .* is updated otherwise by factor=0.25"),
        (Unpublished, "law 'factor': parameter .* is not what was published"),
        (OtherUnderAnEngine, "law 'training': an engine's losses, norms or weights are up to"),
        (MakesStateLate, "law 'reload': it raised CheckpointError"),
    ],
)
def test_each_broken_law_is_found(wrong: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_optimizer(wrong, params={} if wrong is NoRate else {"lr": 0.05})


def test_what_is_no_optimizer_is_told() -> None:
    with pytest.raises(AssertionError, match="it builds a list, wanted a torch.optim.Optimizer"):
        check_optimizer(lambda groups: list(groups))
    with pytest.raises(AssertionError, match="finding the optimizer 'Sophia' raised PluginError"):
        check_optimizer("Sophia")
