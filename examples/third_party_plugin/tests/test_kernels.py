"""The two variants agree, and neither moves what has no gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from dsx.plugin.manager import PluginManager
from dsx.registry.registry import Registry
from dsx.testing import check_variants
from torch import Tensor

from acme_sparse_adam import OPERATION
from acme_sparse_adam.kernels.gathered import gathered_step
from acme_sparse_adam.kernels.masked import masked_step

VARIANTS = pytest.mark.parametrize("kernel", [masked_step, gathered_step])
SETTINGS: Mapping[str, Any] = {"step": 3, "lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}


def tensors(touched: float, *, numel: int = 300_001) -> list[Tensor]:
    """Weights, gradient of which this share is not zero, and both moments."""
    dice = torch.Generator().manual_seed(0)
    weights, grad, first, second = torch.randn(4, numel, generator=dice)
    grad[torch.rand(numel, generator=dice) >= touched] = 0
    return [weights, grad, first, second.square()]


def test_variants_agree_at_every_size_and_dtype() -> None:
    assert check_variants(OPERATION) == ["gathered"]


@pytest.mark.parametrize("touched", [0.0, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_variants_agree_at_every_density(touched: float, dtype: torch.dtype) -> None:
    results = []
    for kernel in (masked_step, gathered_step):
        weights, grad, first, second = tensors(touched)
        weights, grad, out = weights.to(dtype), grad.to(dtype), torch.zeros(len(weights), dtype=torch.bfloat16)
        kernel(weights, grad, first, second, **SETTINGS, grad_factor=0.5, copy_out=out)
        results.append((weights, first, second, out))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6 if ours.dtype == torch.float32 else 0.01, atol=1e-6)


@VARIANTS
def test_what_has_no_gradient_keeps_its_bits(kernel: Callable[..., None]) -> None:
    held = tensors(0.01)
    before = [tensor.clone() for tensor in held]
    kernel(*held, **SETTINGS)
    still = before[1] == 0
    for tensor, old in zip(held, before, strict=True):
        assert torch.equal(tensor[still], old[still])
    assert not torch.any(held[0][~still] == before[0][~still])


@VARIANTS
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("touched", [0.01, 0.5])
def test_a_gradient_that_is_no_number_spoils_its_own_weight_only(
    kernel: Callable[..., None], bad: float, touched: float
) -> None:
    held = tensors(touched, numel=1000)
    held[1][5] = bad
    kernel(*held, **SETTINGS)
    assert held[0].isnan().nonzero().tolist() == [[5]]


def test_the_fast_variant_is_chosen_on_a_processor(plugins: Callable[..., PluginManager]) -> None:
    registry = Registry(plugins())
    assert registry.kernel(OPERATION, like=torch.zeros(1)) is gathered_step
    assert registry.kernel(OPERATION, like=torch.zeros(1, device="meta")) is masked_step
    forced: Any = Registry(plugins(), kernels=f"{OPERATION}=torch").kernel(OPERATION, like=torch.zeros(1))
    assert forced is masked_step
