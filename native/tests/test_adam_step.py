"""adam_step in C++: equal to the PyTorch reference and to torch's optimizers, on every instruction set here."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dsx.kernels import adam_step as reference_module
from dsx.kernels import reference
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry
from dsx.testing.kernels import check_variants
from dsx_native import _core
from dsx_native.kernels import adam_step

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
STATES = (torch.float32, torch.bfloat16)
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "decoupled": True}
NAMES = ("shard", "grad", "exp_avg", "exp_avg_sq", "copy_out")


@pytest.fixture(params=_core.available())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set in turn."""
    monkeypatch.setenv("DSX_NATIVE_ISA", request.param)
    assert _core.chosen() == request.param
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[Any]:
    """torch.set_num_threads, undone afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def columns(n: int, dtypes: tuple[torch.dtype | None, ...], *, seed: int = 0) -> list[torch.Tensor | None]:
    """shard, grad, exp_avg, exp_avg_sq and copy_out of random numbers; the squares are not negative."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(n, generator=generator) for _ in dtypes]
    values[3].square_()
    return [None if dtype is None else value.to(dtype) for value, dtype in zip(values, dtypes, strict=True)]


def step_both(tensors: list[torch.Tensor | None], **settings: Any) -> tuple[list[Any], list[Any]]:
    """The same columns after our update and after the reference's."""
    ours = [None if t is None else t.clone() for t in tensors]
    theirs = [None if t is None else t.clone() for t in tensors]
    adam_step(*ours[:4], copy_out=ours[4], **settings)
    reference("adam_step")(*theirs[:4], copy_out=theirs[4], **settings)
    return ours, theirs


def assert_near(ours: list[Any], theirs: list[Any], case: Any) -> None:
    """Equal to a few roundings of fp32, and to one of the narrow format where a result is kept in it."""
    relative = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
    for name, a, b in zip(NAMES, ours, theirs, strict=True):
        if a is not None:
            torch.testing.assert_close(
                a.double(), b.double(), rtol=relative[a.dtype], atol=5e-7, equal_nan=True, msg=f"{name} with {case}"
            )


@pytest.mark.usefixtures("isa")
def test_equals_the_reference_in_every_size_dtype_and_alignment() -> None:
    registry = Registry(plugin_manager())
    assert "native" in check_variants("adam_step", registry=registry)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("n", [1, 7, 33, 1023])
def test_equals_the_reference_in_every_mixture_of_dtypes(n: int) -> None:
    mixtures = list(itertools.product(FLOATS, FLOATS, STATES, STATES, (None, *FLOATS)))
    assert len(mixtures) == 144
    for seed, dtypes in enumerate(mixtures):
        ours, theirs = step_both(columns(n, dtypes, seed=seed), **SETTINGS, step=3, grad_factor=0.5)
        assert_near(ours, theirs, dtypes)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.3, 0.99)])
def test_equals_torch_over_many_updates(decoupled: bool, betas: tuple[float, float]) -> None:
    optimizer_class = torch.optim.AdamW if decoupled else torch.optim.Adam
    theirs = torch.nn.Parameter(columns(1023, (torch.float32,) * 5)[0])
    optimizer = optimizer_class([theirs], lr=1e-2, betas=betas, eps=1e-8, weight_decay=0.1, foreach=False)
    ours, m, v = theirs.detach().clone(), torch.zeros(1023), torch.zeros(1023)
    for step in range(1, 31):
        grad = torch.randn(1023, generator=torch.Generator().manual_seed(step))
        theirs.grad = grad.clone()
        optimizer.step()
        adam_step(ours, grad, m, v, step=step, **{**SETTINGS, "betas": betas, "decoupled": decoupled})
    state = optimizer.state[theirs]
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(m, state["exp_avg"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(v, state["exp_avg_sq"], rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("isa")
def test_two_tensors_and_two_updates() -> None:
    """B50: two parameters of ones (2^16 elements, and an odd number), gradients of ones: both equal torch's AdamW."""
    for n in (1 << 16, (1 << 16) + 1):
        theirs = [torch.nn.Parameter(torch.ones(n)) for _ in range(2)]
        optimizer = torch.optim.AdamW(theirs, lr=0.01, foreach=False)
        ours = [(torch.ones(n), torch.zeros(n), torch.zeros(n)) for _ in range(2)]
        for step in (1, 2):
            for parameter in theirs:
                parameter.grad = torch.ones(n)
            optimizer.step()
            for shard, m, v in ours:
                adam_step(shard, torch.ones(n), m, v, step=step, **{**SETTINGS, "weight_decay": 0.01})
        for (shard, _, _), parameter in zip(ours, theirs, strict=True):
            torch.testing.assert_close(shard, parameter.detach(), rtol=1e-6, atol=0)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", FLOATS)
def test_strange_numbers_end_as_in_the_reference(dtype: torch.dtype) -> None:
    strange = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-45, 6e-8, 65504.0, 3e38, 1.0]
    pairs = torch.tensor(list(itertools.product(strange, strange))).to(dtype)
    state = torch.tensor([0.0, 1e-40, float("inf"), float("nan"), 1.0]).repeat_interleave(len(pairs))
    shard, grad = pairs[:, 0].repeat(5), pairs[:, 1].repeat(5)
    for copy in (None, *FLOATS):
        for kept in STATES:
            copy_out = None if copy is None else torch.zeros(len(shard), dtype=copy)
            tensors = [shard, grad, torch.zeros(len(shard), dtype=kept), state.to(kept), copy_out]
            ours, theirs = step_both(tensors, **SETTINGS, step=2)
            assert_near(ours, theirs, (copy, kept))
            assert any(t.isnan().any() for t in ours[:1])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtypes", [(torch.float32,) * 5, (torch.bfloat16,) * 5], ids=["fp32", "bf16"])
def test_the_same_bits_on_any_number_of_threads_and_in_any_parts(dtypes: Any, threads: Any) -> None:
    n = 200_003
    results = []
    for count in (1, 2, 3):
        threads(count)
        tensors = columns(n, dtypes)
        adam_step(*tensors[:4], copy_out=tensors[4], **SETTINGS, step=2)
        results.append(tensors)
    parts = columns(n, dtypes)
    for begin, end in itertools.pairwise((0, 1, 77, 100_000, n)):
        cut = [t[begin:end] for t in parts if t is not None]
        adam_step(*cut[:4], copy_out=cut[4], **SETTINGS, step=2)
    for other in (*results[1:], parts):
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_child_of_fork_updates_too() -> None:
    """Ranks are forked from a server that has torch loaded: helpers of the parent must not be waited for.

    Only the update itself runs on several threads: torch's own do not survive a fork.
    """
    script = (
        "import os, signal, torch\n"
        "from dsx_native.kernels import adam_step\n"
        "settings = dict(step=1, lr=0.5, betas=(0.9, 0.99), eps=0.0, weight_decay=0.0, decoupled=True)\n"
        "def step():\n"
        "    torch.set_num_threads(1)\n"
        "    t = [torch.ones(300_001) for _ in range(4)]\n"
        "    torch.set_num_threads(3)\n"
        "    adam_step(*t, **settings)\n"
        "    torch.set_num_threads(1)\n"
        "    return t[0].sum().item()\n"
        "first = step()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(30)\n"
        "    os._exit(0 if step() == first else 3)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60, check=False)
    assert done.returncode == 0


def test_autograd_learns_of_the_change() -> None:
    weight, grad, m, v = (torch.ones(3) for _ in range(4))
    factor = torch.ones(3, requires_grad=True)
    loss = (weight * factor).sum()
    adam_step(weight, grad, m, v, step=1, **SETTINGS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_reference_is_the_definition() -> None:
    """The signatures agree, so that the registry can put one in the other's place."""
    import inspect

    ours = inspect.signature(adam_step).parameters
    theirs = inspect.signature(reference_module.adam_step).parameters
    assert {name: p.default for name, p in ours.items()} == {name: p.default for name, p in theirs.items()}
