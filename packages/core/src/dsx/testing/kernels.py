"""Kernel conformance: every variant that runs here against the torch reference, the core's or the plugin's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dsx.errors import KernelError
from dsx.kernels import OPERATIONS
from dsx.kernels import reference as core_reference
from dsx.plugin.types import Form, Kernel, Score
from dsx.registry.loading import load_object
from dsx.testing.subjects import installed
from dsx.testing.verdict import fail, hold, trying

SIZES = (0, 1, 7, 64, 1000, 100_003)
"""Empty, one, odd, one vector, several, and more than a block."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OFFSETS = (0, 1)
"""Elements by which a view starts behind its allocation: 1 is aligned to nothing wider than an element."""

ODD = 77
"""Elements of the cases with gaps between them, with inf and nan, and of those run twice."""

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
    """The part of a registry that the check needs. Give it one of its own: variants are forced one by one."""

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
"""The core's operations on flat tensors. A plugin's own operation has its form beside its ``torch`` variant."""


def check_variants(
    operation: str,
    *,
    registry: Kernels | None = None,
    plugins: Sequence[object | str] = (),
    form: Form | None = None,
    reference: Callable[..., Any] | None = None,
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> list[str]:
    """Compare each variant that can run here with the reference; the names of those compared.

    registry: without it, one of the installed plugins and ``plugins``. form, reference: without them, the core's; of
    an operation that is not the core's, those of its variant ``torch``. Laws, for every size, dtype, setting and
    alignment, with and without ``copy_out``, also where most of the gradient is zero: each tensor is the reference's
    up to rounding; inf and nan come out where the reference has them; ``grad`` is only read; nothing outside the
    tensors is written; the same bits each time. A dtype, or a view with gaps, that a variant does not take is refused
    with a KernelError that changes nothing. Raises AssertionError naming variant and case.
    """
    with trying(f"operation {operation}"):
        known: Kernels = installed(plugins) if registry is None else registry
        variants = [variant for variant, score in known.scores(operation) if score.value > 0 and variant != "torch"]
        shape = form if form is not None else _form(operation, known)
        right = reference if reference is not None else _reference(operation, known)
    own = (
        ["torch"] if reference is None and operation not in OPERATIONS else []
    )  # is right by definition, if it is tidy
    for variant in (*own, *variants):
        with trying(f"loading {operation}={variant}"):
            function = known.require(operation, variant)
        bench = _Bench(operation, variant, function, right, shape, known)
        done = [bench.compare(case) for case in _cases(shape, sizes, dtypes)]
        hold(any(done), f"{operation}={variant} takes none of {', '.join(map(str, dtypes))}")
    return variants


def _form(operation: str, registry: Kernels) -> Form:
    """The core's form, or that of the plugin's own reference."""
    if operation in FORMS:
        return FORMS[operation]
    plugins = getattr(registry, "plugins", None)
    for tagged in plugins.components() if plugins is not None else ():
        kernel = tagged.value
        own = isinstance(kernel, Kernel) and (kernel.operation, kernel.variant) == (operation, "torch")
        if own and kernel.form is not None:
            made = load_object(kernel.form, what=f"form of {operation}", provider=tagged.plugin)
            found = made() if callable(made) else made
            if isinstance(found, Form):
                return found
            fail(f"the form of {operation} is a {type(found).__name__}, wanted a Form")
    return fail(f"operation {operation} has no form: give its variant 'torch' one (Kernel(form=...)), or pass form=")


def _reference(operation: str, registry: Kernels) -> Callable[..., Any]:
    """The core's reference, or the plugin's own: the variant ``torch``."""
    return core_reference(operation) if operation in OPERATIONS else registry.require(operation, "torch")


@dataclass(frozen=True, slots=True)
class _Case:
    size: int
    dtype: torch.dtype
    offset: int
    settings: Mapping[str, Any]
    copy_out: torch.dtype | None
    stride: int = 1
    """More than 1: elements with gaps between them."""
    bad: float = 0.0
    """What stands in the middle of the gradient, where it is not 0."""
    filled: float = 1.0
    """Share of the gradient that is not zero, as where an embedding is used in part."""


def _cases(form: Form, sizes: Sequence[int], dtypes: Sequence[torch.dtype]) -> Iterator[_Case]:
    for size, dtype, offset, settings, copied in itertools.product(
        sizes, dtypes, OFFSETS, form.settings, (False, True)
    ):
        copy_out = (torch.bfloat16 if dtype == torch.float32 else torch.float32) if copied else None
        yield _Case(size, dtype, offset, settings, copy_out)
    for dtype in dtypes:
        for settings in form.settings:
            yield _Case(ODD, dtype, 1, settings, None, stride=2)
            for bad in (math.inf, -math.inf, math.nan):
                yield _Case(ODD, dtype, 0, settings, None, bad=bad)
            for filled in (0.0, 0.05):
                yield _Case(ODD, dtype, 0, settings, torch.float32, filled=filled)


@dataclass(frozen=True, slots=True)
class _Bench:
    """One variant beside its reference."""

    operation: str
    variant: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    form: Form
    registry: Kernels

    def compare(self, case: _Case) -> bool:
        """Whether the variant took the case; if it did, its results are right."""
        ours, theirs = _tensors(case, self.form), _tensors(case, self.form)
        what = f"{self.operation}={self.variant} with {case}"
        try:
            with trying(what, allowed=(KernelError,)):
                self.registry.kernel(self.operation, like=ours["shard"].view)
                _call(self.function, ours, case)
        except KernelError:
            for name, held in ours.items():
                hold(_same(held.whole, theirs[name].whole), f"{what} was refused, but changed {name}")
            return False
        hold(_same(ours["grad"].whole, theirs["grad"].whole), f"{what} changed grad")
        with trying(f"the reference of {self.operation} with {case}"):
            _call(self.reference, theirs, case)
        for name, held in ours.items():
            _check_near(held.view, theirs[name].view, case, name, what)
            hold(held.untouched(), f"{what} wrote outside {name}")
        if case.size == ODD:
            again = _tensors(case, self.form)
            _call(self.function, again, case)
            for name, held in ours.items():
                hold(_same(held.whole, again[name].whole), f"{what}: {name} differs when it is run again")
        return True


def _check_near(found: Tensor, wanted: Tensor, case: _Case, name: str, what: str) -> None:
    limit = max(TOLERANCE[found.dtype], TOLERANCE[case.dtype] if name == "copy_out" else 0.0)
    one, other = found.double(), wanted.double()
    finite = torch.isfinite(other)
    hold(torch.equal(torch.isfinite(one), finite), f"{what}: {name} differs, finite where the reference is not, or not")
    worst = ((one - other).abs() - limit * other.abs())[finite]
    gap = float(worst.max()) if worst.numel() else 0.0
    hold(gap <= ABSOLUTE, f"{what}: {name} differs by up to {gap:g} beyond its tolerance")


def _call(function: Callable[..., Any], held: Mapping[str, _Held], case: _Case) -> None:
    tensors = {name: each.view for name, each in held.items() if name != "copy_out"}
    copy_out = held["copy_out"].view if "copy_out" in held else None
    function(*tensors.values(), **case.settings, copy_out=copy_out)


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal bits, so that nan equals nan."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor within a larger allocation, so that writes around it, and between its elements, are seen."""

    whole: Tensor
    view: Tensor
    around: Tensor
    """Where no element of the tensor is."""

    def untouched(self) -> bool:
        """Whether all around the tensor is as it was."""
        return bool((self.whole[self.around] == 7).all())


def _tensors(case: _Case, form: Form) -> dict[str, _Held]:
    """Equal tensors at each call for the same case."""
    generator = torch.Generator().manual_seed(case.size)
    dtypes = {"shard": case.dtype, "grad": case.dtype, **dict.fromkeys(form.states, torch.float32)}
    if case.copy_out is not None:
        dtypes["copy_out"] = case.copy_out
    held = {}
    for name, dtype in dtypes.items():
        start, end = MARGIN + case.offset, MARGIN + case.offset + case.size * case.stride
        whole = torch.full((end + MARGIN,), 7.0, dtype=dtype)
        view, around = whole[start : end : case.stride], torch.ones(len(whole), dtype=torch.bool)
        around[start : end : case.stride] = False
        values = torch.randn(case.size, generator=generator)
        view.copy_(values.square() if "sq" in name else values)
        if case.filled < 1 and name == "grad":
            view.mul_(torch.rand(case.size, generator=generator) < case.filled)
        if case.bad and name == "grad":
            view[case.size // 2] = case.bad
        held[name] = _Held(whole, view, around)
    return held
