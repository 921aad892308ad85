"""The torch references against torch's own optimizers, in each dtype, over edge sizes and block borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dsx.errors import KernelError
from dsx.kernels import OPERATIONS, blocks, reference

SIZES = (0, 1, 7, 1023, 4096)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 1000, so that the sizes above cross their borders."""
    monkeypatch.setattr(blocks, "CPU_BLOCK", 1000)


def draw(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def adam_arguments(step: int, **changes: Any) -> dict[str, Any]:
    values = {
        "lr": 0.1,
        "betas": (0.8, 0.9),
        "eps": 1e-6,
        "weight_decay": 0.1,
        "decoupled": True,
        "bias_correction": True,
    }
    return {"step": step, **values, **changes}


def adam_expected(w: Tensor, g: Tensor, steps: int, cls: type[torch.optim.Optimizer], **settings: Any) -> Tensor:
    p = torch.nn.Parameter(w.clone())
    optimizer = cls([p], **settings)  # type: ignore[call-arg]
    for k in range(steps):
        p.grad = g * (k + 1)
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_equals_torch(size: int, decoupled: bool) -> None:
    """B50: each size, odd ones too, equals torch's AdamW (decoupled) and Adam (L2)."""
    w, g = draw(size, 0), draw(size, 1)
    cls = torch.optim.AdamW if decoupled else torch.optim.Adam
    expected = adam_expected(w, g, 3, cls, lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    m, v = torch.zeros(size), torch.zeros(size)
    for k in range(3):
        reference("adam_step")(w, g * (k + 1), m, v, **adam_arguments(k + 1, decoupled=decoupled))
    torch.testing.assert_close(w, expected, rtol=1e-6, atol=1e-6)


def test_adam_without_bias_correction() -> None:
    w, m, v = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    settings = adam_arguments(1, weight_decay=0.0, eps=0.0, bias_correction=False)
    reference("adam_step")(w, torch.tensor([2.0]), m, v, **settings)
    # m = 0.2 * 2, v = 0.1 * 4, so the step is lr * 0.4 / sqrt(0.4)
    torch.testing.assert_close(w, torch.tensor([-0.1 * 0.4**0.5]))


def test_gradient_is_multiplied_by_the_factor_and_not_changed() -> None:
    for operation, states, settings in CASES:
        w, other, g = draw(2500, 0), draw(2500, 0), draw(2500, 1)
        kept = g.clone()
        mine, theirs = [torch.zeros(2500) for _ in range(states)], [torch.zeros(2500) for _ in range(states)]
        reference(operation)(w, g, *mine, **settings, grad_factor=0.25)
        reference(operation)(other, g * 0.25, *theirs, **settings)
        torch.testing.assert_close(w, other, rtol=0, atol=0)
        torch.testing.assert_close(g, kept, rtol=0, atol=0)


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("adam_step", 2, adam_arguments(1)),
    ("adam_step", 2, adam_arguments(1, decoupled=False)),
    ("lion_step", 1, {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    (
        "sgd_step",
        1,
        {"step": 2, "lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "nesterov": False},
    ),
    ("sgd_step", 0, {"step": 2, "lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.1, "nesterov": False}),
    ("sgd_step", 1, {"step": 2, "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": True}),
    ("adagrad_step", 1, {"step": 2, "lr": 0.1, "lr_decay": 0.1, "eps": 1e-6, "weight_decay": 0.1}),
    (
        "lamb_step",
        2,
        {
            **{k: v for k, v in adam_arguments(2).items() if k != "decoupled"},
            "max_coeff": 10.0,
            "min_coeff": 0.01,
            "eps_inside_sqrt": False,
        },
    ),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_tensors_are_worked_on_in_fp32(dtype: torch.dtype) -> None:
    """Weights, gradient and states in 16 bits: the fp32 result, rounded once. LAMB reads its moments back."""
    for operation, states, settings in CASES:
        kept = torch.float32 if operation == "lamb_step" else dtype
        w, g = draw(1500, 0).to(dtype), draw(1500, 1).to(dtype)
        s = [draw(1500, 2 + k).abs().to(kept) for k in range(states)]
        wide_w, wide_s = w.float(), [x.float().clone() for x in s]
        copy = torch.empty(1500, dtype=dtype)
        reference(operation)(w, g, *s, **settings, grad_factor=0.3, copy_out=copy)
        reference(operation)(wide_w, g.float(), *wide_s, **settings, grad_factor=0.3)
        torch.testing.assert_close(w, wide_w.to(dtype), rtol=0, atol=0)
        torch.testing.assert_close(copy, w, rtol=0, atol=0)
        for narrow, wide in zip(s, wide_s, strict=True):
            torch.testing.assert_close(narrow, wide.to(kept), rtol=0, atol=0)


def test_copy_out_and_unaligned_views() -> None:
    """B50: unaligned views; nothing beside them is written."""
    for operation, states, settings in CASES:
        store, g = draw(1026, 0), draw(1026, 1)
        before = store.clone()
        s = [torch.zeros(1026) for _ in range(states)]
        copy = torch.full((1026,), 5.0, dtype=torch.bfloat16)
        views = [t[1:1024] for t in (store, g, *s)]
        expected, zeros = before[1:1024].clone(), [torch.zeros(1023) for _ in range(states)]
        reference(operation)(*views, **settings, copy_out=copy[1:1024])
        reference(operation)(expected, g[1:1024].clone(), *zeros, **settings)
        torch.testing.assert_close(store[1:1024], expected, rtol=0, atol=0)
        torch.testing.assert_close(copy[1:1024], expected.to(torch.bfloat16), rtol=0, atol=0)
        edges = torch.tensor([0, 1024, 1025])
        torch.testing.assert_close(store[edges], before[edges], rtol=0, atol=0)
        assert copy[edges].eq(5.0).all()


def test_double_precision_stays_double() -> None:
    w, g = draw(5, 0).double(), draw(5, 1).double()
    expected = adam_expected(w, g, 1, torch.optim.AdamW, lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    m, v = torch.zeros(5).double(), torch.zeros(5).double()
    reference("adam_step")(w, g, m, v, **adam_arguments(1))
    torch.testing.assert_close(w, expected, rtol=1e-14, atol=1e-14)


def test_lion_against_its_formula() -> None:
    w, g, m = draw(9, 0), draw(9, 1), draw(9, 2)
    direction = torch.sign(0.9 * m + 0.1 * g)
    expected_w, expected_m = w * (1 - 0.1 * 0.2) - 0.1 * direction, 0.99 * m + 0.01 * g
    reference("lion_step")(w, g, m, lr=0.1, betas=(0.9, 0.99), weight_decay=0.2)
    torch.testing.assert_close(w, expected_w, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(m, expected_m, rtol=1e-6, atol=1e-6)


def lamb_formula(w: Tensor, g: Tensor, *, lr: float, wd: float, low: float, high: float, inside: bool) -> Tensor:
    """The second step on the same gradient, in whole-tensor double precision."""
    w, g = w.double(), g.double()
    m = v = torch.zeros_like(w)
    for step in (1, 2):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        denominator = (v + 1e-6).sqrt() if inside else v.sqrt() + 1e-6
        update = m / denominator + wd * w
        ratio = (w.norm() / update.norm()).clamp(low, high) if w.norm() > 0 and update.norm() > 0 else 1.0
        w = w - lr * ratio * (1 - 0.99**step) ** 0.5 / (1 - 0.9**step) * update
    return w.float()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0.01, 10.0), (3.0, 3.0), (1e-9, 1e-8)])
def test_lamb_against_its_formula(low: float, high: float, inside: bool) -> None:
    for shape, scale in (((3, 7), 1.0), ((40, 60), 1.0), ((5,), 0.0)):
        w = draw(torch.Size(shape).numel(), 0).view(shape) * scale
        g = draw(w.numel(), 1).view(shape)
        expected = lamb_formula(w, g, lr=0.1, wd=0.1, low=low, high=high, inside=inside)
        m, v = torch.zeros(shape), torch.zeros(shape)
        for step in (1, 2):
            reference("lamb_step")(
                w,
                g,
                m,
                v,
                step=step,
                lr=0.1,
                betas=(0.9, 0.99),
                eps=1e-6,
                weight_decay=0.1,
                bias_correction=True,
                max_coeff=high,
                min_coeff=low,
                eps_inside_sqrt=inside,
            )
        torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)


def test_every_operation_has_a_reference_and_others_are_refused() -> None:
    found: list[Callable[..., Any]] = [reference(operation) for operation in OPERATIONS]
    assert [f.__name__ for f in found] == list(OPERATIONS)
    with pytest.raises(KernelError, match="did you mean 'adam_step'"):
        reference("adam_stap")
