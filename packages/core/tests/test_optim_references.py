"""An optimizer from outside brings the references of its own operations, so it works where no engine is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from dsx.errors import KernelError
from dsx.optim.base import Group, Optimizer
from dsx.optim.runs import Rule
from dsx.optim.sgd import SGD


def sign_step(shard: Tensor, grad: Tensor, *, lr: float, grad_factor: float, copy_out: Tensor | None) -> None:
    shard.add_((grad * grad_factor).sign(), alpha=-lr)


def twice(shard: Tensor, grad: Tensor, *, lr: float, **more: Any) -> None:
    sign_step(shard, grad, lr=2 * lr, **more)


class Signs(Optimizer):
    references: ClassVar[Mapping[str, Any]] = {"sign_step": sign_step}

    def __init__(self, params: Any, lr: float = 0.5, **more: Any) -> None:
        super().__init__(params, {"lr": lr}, **more)

    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        return Rule("sign_step", ())

    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        return {"lr": group["lr"]}


class Unknown(Signs):
    references: ClassVar[Mapping[str, Any]] = {}


class Source:
    """As a registry: it has the last word on every operation."""

    def kernel(self, operation: str, *, like: Tensor | None = None) -> Any:
        return twice


def stepped(kind: type[Signs], **more: Any) -> list[float]:
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([3.0, 0.0, -2.0])
    kind([weight], **more).step()
    found: list[float] = weight.tolist()
    return found


@pytest.mark.parametrize("kernels", [None, {}, {"another_step": twice}])
def test_its_own_reference_serves_where_nobody_gives_a_kernel(kernels: Any) -> None:
    assert stepped(Signs, kernels=kernels) == [-0.5, 0.0, 0.5]


@pytest.mark.parametrize("kernels", [{"sign_step": twice}, Source()])
def test_a_kernel_that_is_given_comes_first(kernels: Any) -> None:
    assert stepped(Signs, kernels=kernels) == [-1.0, 0.0, 1.0]


def test_without_one_the_operation_is_unknown() -> None:
    with pytest.raises(KernelError, match="no operation 'sign_step'"):
        stepped(Unknown)


def test_the_cores_optimizers_bring_none() -> None:
    assert dict(Optimizer.references) == dict(SGD.references) == {}
