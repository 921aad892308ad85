"""Laws of an optimizer's own ``step`` and ``state_dict``, on parameters that fall towards a target."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dsx.errors import DsxError
from dsx.testing.subjects import Subject
from dsx.testing.verdict import hold

SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (7,), (4, 2, 3))
ODD: tuple[tuple[int, ...], ...] = ((0, 3), (), (1,), (1, 1))
STEPS = 20
"""Steps within which the loss must have fallen."""


class Field:
    """Parameters of these shapes, and a target for each; the loss is half the squared distance."""

    def __init__(self, shapes: Sequence[tuple[int, ...]] = SHAPES, *, dtype: torch.dtype = torch.float32) -> None:
        dice = torch.Generator().manual_seed(5)
        self.params = [nn.Parameter(torch.randn(shape, generator=dice).to(dtype)) for shape in shapes]
        self.targets = [torch.randn(shape, generator=dice).to(dtype) for shape in shapes]
        self.names = [f"layer{number}.weight" for number in range(len(shapes))]

    def group(self, *numbers: int, **options: Any) -> dict[str, Any]:
        """A parameter group of these parameters; of all, if none is given."""
        chosen = numbers or tuple(range(len(self.params)))
        names = [self.names[i] for i in chosen]
        return {"params": [self.params[i] for i in chosen], "param_names": names, **options}

    def loss(self) -> float:
        """Half the squared distance to the targets."""
        pairs = zip(self.params, self.targets, strict=True)
        return float(sum((p.detach().double() - t.double()).square().sum() for p, t in pairs)) / 2

    def steps(self, optimizer: torch.optim.Optimizer, count: int, *, without: Sequence[int] = ()) -> None:
        """So many steps; parameters of these numbers have no gradient."""
        for _ in range(count):
            for number, (p, target) in enumerate(zip(self.params, self.targets, strict=True)):
                p.grad = None if number in without else p.detach() - target
            optimizer.step()
        for p in self.params:
            p.grad = None

    def weights(self) -> list[Tensor]:
        """Copies of the parameters."""
        return [p.detach().clone() for p in self.params]


def built(subject: Subject, groups: Sequence[Mapping[str, Any]]) -> Any:
    """The optimizer over these groups, as a configuration builds it."""
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in subject.params.items()}
    made = subject.factory([dict(group) for group in groups], **params)
    hold(isinstance(made, torch.optim.Optimizer), f"it builds a {type(made).__name__}, wanted a torch.optim.Optimizer")
    return made


def check_learns(subject: Subject) -> None:
    """Steps lower the loss, and every group shows its rate."""
    field = Field()
    optimizer = built(subject, [field.group()])
    for number, group in enumerate(optimizer.param_groups):
        good = isinstance(group.get("lr"), (int, float, Tensor)) and math.isfinite(float(group["lr"]))
        hold(good, f"group {number} has no rate 'lr' that a schedule could set: found {group.get('lr')!r}")
    before = field.loss()
    field.steps(optimizer, STEPS)
    hold(field.loss() < before, f"{STEPS} steps took the loss from {before:g} to {field.loss():g}, wanted less")


def check_same(subject: Subject) -> None:
    """Two courses have the same bits."""
    one, other = Field(), Field()
    one.steps(built(subject, [one.group()]), 3)
    other.steps(built(subject, [other.group()]), 3)
    same_bits(one.weights(), other.weights(), one.names, "differs between two equal courses")


def check_zero_rate(subject: Subject) -> None:
    """With a rate of 0 weights stay. A weight decay that ignores the rate is another matter, and switched off."""
    field = Field()
    optimizer = built(subject, [field.group()])
    for group in optimizer.param_groups:
        _set(group, "lr", 0.0)
        if "weight_decay" in group:
            _set(group, "weight_decay", 0.0)
    before = field.weights()
    field.steps(optimizer, 2)
    same_bits(field.weights(), before, field.names, "changes with lr 0")


def check_rates(subject: Subject) -> None:
    """Two groups of one optimizer move as if each had an optimizer of its own rate."""
    base = float(built(subject, [Field().group()]).param_groups[0]["lr"])
    together, apart = Field(), Field()
    together.steps(built(subject, [together.group(0, 2), together.group(1, lr=base / 4)]), 3)
    first, second = built(subject, [apart.group(0, 2)]), built(subject, [apart.group(1, lr=base / 4)])
    apart.steps(first, 3, without=(1,))
    apart.steps(second, 3, without=(0, 2))
    near(together.weights(), apart.weights(), together.names, "of two groups is not updated by its own group's rate")
    plain = Field()
    plain.steps(built(subject, [plain.group()]), 3)
    moved = not torch.equal(plain.params[1], together.params[1])
    hold(moved, f"a group with a quarter of the rate {base:g} moves exactly as with the whole")


def check_absent(subject: Subject) -> None:
    """A parameter without gradient keeps weights and state, whether it ever had one or not."""
    for first in (0, 2):
        field = Field()
        optimizer = built(subject, [field.group()])
        field.steps(optimizer, first)
        weights, state = field.weights(), pickle.dumps(_plain(optimizer.state.get(field.params[1], {})))
        field.steps(optimizer, 1, without=(1,))
        when = f"after {first} steps"
        hold(torch.equal(field.params[1], weights[1]), f"{when} a parameter without gradient is changed")
        kept = pickle.dumps(_plain(optimizer.state.get(field.params[1], {})))
        hold(kept == state or not first, f"{when} the state of a parameter without gradient is changed")
        hold(not torch.equal(field.params[0], weights[0]), f"{when} its neighbour with a gradient is not updated")


def check_odd(subject: Subject) -> None:
    """Empty and zero-dimensional parameters are trained, or refused."""
    field = Field((*SHAPES, *ODD))
    try:
        optimizer = built(subject, [field.group()])
        before = field.loss()
        field.steps(optimizer, STEPS)
    except DsxError:
        return
    finite(field.weights(), field.names, "after steps with odd shapes")
    hold(field.loss() < before, f"with odd shapes {STEPS} steps took the loss from {before:g} to {field.loss():g}")
    _check_state(lambda: built(subject, [Field((*SHAPES, *ODD)).group()]), optimizer)


def check_narrow(subject: Subject) -> None:
    """Parameters in bf16 are trained in bf16, or refused."""
    field = Field(dtype=torch.bfloat16)
    try:
        optimizer = built(subject, [field.group()])
        field.steps(optimizer, 3)
    except DsxError:
        return
    for name, p in zip(field.names, field.params, strict=True):
        hold(p.dtype == torch.bfloat16, f"parameter {name} in bf16 became {p.dtype}")
    finite(field.weights(), field.names, "in bf16")


def check_resumed(subject: Subject) -> None:
    """A state taken after some steps goes on bit for bit, carried by pickle and by torch.save."""
    whole = Field()
    optimizer = built(subject, [whole.group(0, 1), whole.group(2)])
    whole.steps(optimizer, 3)
    weights, state = whole.weights(), optimizer.state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    carried = {"pickle": pickle.loads(pickle.dumps(state)), "torch.save": torch.load(buffer, weights_only=True)}
    whole.steps(optimizer, 3)
    for way, taken in carried.items():
        field = Field()
        for p, value in zip(field.params, weights, strict=True):
            p.data.copy_(value)
        fresh = built(subject, [field.group(0, 1), field.group(2)])
        fresh.load_state_dict(taken)
        field.steps(fresh, 3)
        same_bits(field.weights(), whole.weights(), field.names, f"goes on otherwise after a reload through {way}")


def _check_state(fresh: Callable[[], Any], optimizer: Any) -> None:
    """The state dictionary fits a fresh optimizer."""
    made = fresh()
    made.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    found, wanted = len(made.state_dict()["state"]), len(optimizer.state_dict()["state"])
    hold(found == wanted, f"a fresh optimizer holds {found} states after a reload, wanted {wanted}")


def same_bits(found: Sequence[Tensor], wanted: Sequence[Tensor], names: Sequence[str], what: str) -> None:
    """Hold that tensors are equal; ``what`` goes on from the name of the first that is not."""
    for one, other, name in zip(found, wanted, names, strict=True):
        gap = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
        hold(torch.equal(one, other), f"parameter {name} {what} (by up to {gap:g})")


def near(
    found: Sequence[Tensor], wanted: Sequence[Tensor], names: Sequence[str], what: str, *, limit: float = 1e-5
) -> None:
    """Hold that tensors are equal up to the order of rounding."""
    for one, other, name in zip(found, wanted, names, strict=True):
        gap = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
        hold(gap <= limit, f"parameter {name} {what} (by up to {gap:g})")


def finite(tensors: Sequence[Tensor], names: Sequence[str], what: str) -> None:
    """Hold that there is no inf and no nan."""
    for tensor, name in zip(tensors, names, strict=True):
        hold(bool(torch.isfinite(tensor).all()), f"parameter {name} is not finite {what}")


def _set(group: dict[str, Any], key: str, value: float) -> None:
    if isinstance(group[key], Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as bytes: tensors by their elements, so that views of one buffer compare by what they show."""
    return {
        key: value.detach().reshape(-1).view(torch.uint8).tolist() if isinstance(value, Tensor) else value
        for key, value in sorted(state.items())
    }
