"""Kernel conformance: every variant that runs here against the torch reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dsx.errors import KernelError
from dsx.kernels import reference
from dsx.plugin.types import Form, Score

SIZES = (0, 1, 7, 64, 1000, 100_003)
"""Empty, one, odd, one vector, several, and more than a block."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OFFSETS = (0, 1)
"""Elements by which a view starts behind its allocation: 1 is aligned to nothing wider than an element."""

MARGIN = 3
"""Elements around each tensor that a kernel must leave alone."""

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
}
"""Relative difference that another order of rounding may make: one unit in the last place of a narrow result."""

ABSOLUTE = 5e-7
"""Difference that may remain where a weight nearly vanishes: a rounding of the numbers that cancelled, of about one."""


class Kernels(Protocol):
    """The part of the registry that the check needs. Give it a registry of its own: variants are forced one by one."""

    def scores(self, operation: str) -> tuple[tuple[str, Score], ...]: ...
    def require(self, operation: str, variant: str) -> Callable[..., Any]: ...
    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]: ...


_ADAM = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8}
_LAMB = {**_ADAM, "bias_correction": True, "max_coeff": 10.0, "min_coeff": 0.01, "eps_inside_sqrt": False}
_SGD = {"lr": 1e-2, "dampening": 0.0}

FORMS: Mapping[str, Form] = {
    "adam_step": Form(
        ("exp_avg", "exp_avg_sq"),
        (
            {**_ADAM, "step": 1, "weight_decay": 0.0, "decoupled": False},
            {**_ADAM, "step": 10, "weight_decay": 0.1, "decoupled": True, "grad_factor": 0.25},
            {**_ADAM, "step": 3, "weight_decay": 0.1, "decoupled": False, "bias_correction": False},
        ),
    ),
    "adagrad_step": Form(("sum_sq",), ({"step": 2, "lr": 1e-2, "lr_decay": 0.1, "eps": 1e-8, "weight_decay": 0.1},)),
    "lion_step": Form(("exp_avg",), ({"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_factor": 0.5},)),
    "lamb_step": Form(("exp_avg", "exp_avg_sq"), ({**_LAMB, "step": 2, "weight_decay": 0.1},)),
    "sgd_step": Form(
        ("momentum_buffer",),
        (
            {**_SGD, "step": 2, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
            {**_SGD, "step": 1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False, "grad_factor": 0.5},
        ),
    ),
}
"""The core's operations on flat tensors."""


def check_variants(
    operation: str,
    *,
    registry: Kernels,
    form: Form | None = None,
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> list[str]:
    """Compare each variant that can run here with the reference; the names of those compared.

    Every size, dtype, offset and setting, with and without ``copy_out``. Raises AssertionError naming variant and
    case where a tensor differs, or where something outside the tensors was written. A dtype that a variant does not
    take must be refused with a KernelError that changes nothing.
    """
    form = form if form is not None else FORMS[operation]
    compared = []
    for variant, score in registry.scores(operation):
        if score.value > 0 and variant != "torch":
            function = registry.require(operation, variant)
            done = [
                _compare(operation, variant, function, _Case(size, dtype, offset, settings, copy), form, registry)
                for size in sizes
                for dtype in dtypes
                for offset in OFFSETS
                for settings in form.settings
                for copy in (None, torch.bfloat16 if dtype == torch.float32 else torch.float32)
            ]
            assert any(done), f"{operation}={variant} takes none of {', '.join(map(str, dtypes))}"
            compared.append(variant)
    return compared


@dataclass(frozen=True, slots=True)
class _Case:
    size: int
    dtype: torch.dtype
    offset: int
    settings: Mapping[str, Any]
    copy_out: torch.dtype | None


def _compare(
    operation: str, variant: str, function: Callable[..., Any], case: _Case, form: Form, registry: Kernels
) -> bool:
    """Whether the variant took the case; if it did, its results are right."""
    ours, theirs = _tensors(case, form), _tensors(case, form)
    what = f"{operation}={variant} with {case}"
    try:
        registry.kernel(operation, like=ours["shard"].view)
        _call(function, ours, case)
    except KernelError:
        for name, held in ours.items():
            assert torch.equal(held.whole, theirs[name].whole), f"{what} was refused, but changed {name}"
        return False
    _call(reference(operation), theirs, case)
    for name, held in ours.items():
        limit = max(TOLERANCE[held.view.dtype], TOLERANCE[case.dtype] if name == "copy_out" else 0.0)
        found, wanted = held.view.double(), theirs[name].view.double()
        worst = ((found - wanted).abs() - limit * wanted.abs()).nan_to_num(nan=torch.inf)
        assert not (worst > ABSOLUTE).any(), f"{what}: {name} differs by up to {worst.max():g} beyond its tolerance"
        assert held.untouched(), f"{what} wrote outside {name}"
    return True


def _call(function: Callable[..., Any], held: Mapping[str, _Held], case: _Case) -> None:
    tensors = {name: each.view for name, each in held.items() if name != "copy_out"}
    copy_out = held["copy_out"].view if "copy_out" in held else None
    function(*tensors.values(), **case.settings, copy_out=copy_out)


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor within a larger allocation, so that writes around it are seen."""

    whole: Tensor
    view: Tensor
    start: int

    def untouched(self) -> bool:
        """Whether all around the tensor is as it was."""
        end = self.start + self.view.numel()
        return bool((self.whole[: self.start] == 7).all() and (self.whole[end:] == 7).all())


def _tensors(case: _Case, form: Form) -> dict[str, _Held]:
    """Equal tensors at each call for the same case."""
    generator = torch.Generator().manual_seed(case.size)
    dtypes = {"shard": case.dtype, "grad": case.dtype, **dict.fromkeys(form.states, torch.float32)}
    if case.copy_out is not None:
        dtypes["copy_out"] = case.copy_out
    held = {}
    for name, dtype in dtypes.items():
        start = MARGIN + case.offset
        whole = torch.full((case.size + start + MARGIN,), 7.0, dtype=dtype)
        view = whole[start : start + case.size]
        values = torch.randn(case.size, generator=generator)
        view.copy_(values.square() if "sq" in name else values)
        held[name] = _Held(whole, view, start)
    return held
