"""Orthogonalisation and the Muon step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dsx.kernels.muon_step import muon_step
from dsx.kernels.orthogonalise import COEFFICIENTS, orthogonalise

SHAPES = [(1, 1), (3, 3), (6, 10), (10, 6), (5, 40), (64, 16)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def through_singular_values(matrix: Tensor, steps: int) -> Tensor:
    """The same polynomial on the singular values: what Newton-Schulz computes without ever finding them."""
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return ((u * s) @ vh).float()


@pytest.mark.parametrize("method", ["gram", "standard"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [1, 3, 4, 5])
def test_is_the_polynomial_of_the_singular_values(shape: tuple[int, int], method: str, steps: int) -> None:
    matrix = draw(*shape)
    found = orthogonalise(matrix, steps=steps, method=method)  # type: ignore[arg-type]
    torch.testing.assert_close(found, through_singular_values(matrix, steps), rtol=0, atol=2e-4)


@pytest.mark.parametrize("method", ["gram", "standard"])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_come_near_one(shape: tuple[int, int], method: str) -> None:
    s = torch.linalg.svdvals(orthogonalise(draw(*shape), method=method))  # type: ignore[arg-type]
    assert s.max() < 1.25
    assert s.min() > 0.3


def test_a_stack_is_many_matrices() -> None:
    stack = draw(4, 6, 30)
    for method in ("gram", "standard"):
        found = orthogonalise(stack, method=method)  # type: ignore[arg-type]
        for one, matrix in zip(found, stack, strict=True):
            torch.testing.assert_close(one, orthogonalise(matrix, method=method), rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


def test_low_rank_and_zero_matrices_stay_finite() -> None:
    rank_one = torch.ones(8, 40)
    for method in ("gram", "standard"):
        assert orthogonalise(rank_one, steps=12, method=method).isfinite().all()  # type: ignore[arg-type]
        assert orthogonalise(torch.zeros(8, 40), method=method).eq(0).all()  # type: ignore[arg-type]


def step(w: Tensor, g: Tensor, m: Tensor, **changes: object) -> None:
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "ns_steps": 5, "ns_method": "gram"}
    muon_step(w, g, m, **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_step_against_its_formula(shape: tuple[int, int]) -> None:
    w, g, m = draw(*shape), draw(*shape, seed=1), draw(*shape, seed=2)
    new_m = 0.9 * m + 0.1 * 0.5 * g
    direction = 0.1 * 0.5 * g + 0.9 * new_m
    scale = math.sqrt(max(1.0, shape[0] / shape[1]))
    expected = w * (1 - 0.01) - 0.1 * scale * through_singular_values(direction, 5)
    copy = torch.empty(shape, dtype=torch.bfloat16)
    step(w, g, m, grad_factor=0.5, copy_out=copy)
    torch.testing.assert_close(m, new_m)
    torch.testing.assert_close(w, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(copy, w.to(torch.bfloat16), rtol=0, atol=0)


def test_step_agrees_with_torch_in_its_bf16() -> None:
    """Torch orthogonalises in bf16, so the agreement is to bf16's precision."""
    w, g = draw(6, 10), draw(6, 10, seed=1)
    p = torch.nn.Parameter(w.clone())
    p.grad = g.clone()
    torch.optim.Muon([p], lr=0.1, weight_decay=0.1, momentum=0.9).step()
    step(w, g, torch.zeros(6, 10))
    torch.testing.assert_close(w, p.detach(), rtol=0, atol=5e-3)


def test_convolutions_are_one_matrix_and_stacks_are_many() -> None:
    w, g = draw(4, 3, 2, 2), draw(4, 3, 2, 2, seed=1)
    flat_w = w.flatten(1).clone()
    step(w, g, torch.zeros_like(w))
    step(flat_w, g.flatten(1), torch.zeros_like(flat_w))
    torch.testing.assert_close(w.flatten(1), flat_w, rtol=1e-5, atol=1e-6)

    stack, gradient = draw(3, 4, 5), draw(3, 4, 5, seed=1)
    first = stack[0].clone()
    step(stack, gradient, torch.zeros_like(stack))
    step(first, gradient[0], torch.zeros(4, 5))
    torch.testing.assert_close(stack[0], first, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_are_rounded_once(dtype: torch.dtype) -> None:
    w, g, m = draw(6, 10).to(dtype), draw(6, 10, seed=1).to(dtype), draw(6, 10, seed=2).to(dtype)
    wide = [t.float() for t in (w, g, m)]
    step(w, g, m, grad_factor=0.3)
    step(*wide, grad_factor=0.3)
    torch.testing.assert_close(w, wide[0].to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(m, wide[2].to(dtype), rtol=0, atol=0)
