"""A wrong call raises a KernelError that says what was found, what was wanted and what to do, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from dsx.errors import KernelError
from dsx_native import _core
from dsx_native.kernels import adam_step

SETTINGS: dict[str, Any] = {
    "step": 1,
    "lr": 1e-2,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "decoupled": True,
}


def refused(match: str, /, **changes: Any) -> None:
    """The call with these changes raises, and leaves every tensor as it was."""
    tensors = {name: torch.ones(6) for name in ("shard", "grad", "exp_avg", "exp_avg_sq")}
    arguments = {**tensors, **SETTINGS, **changes}
    held = [value for value in arguments.values() if isinstance(value, torch.Tensor) and value.device.type == "cpu"]
    before = [value.to_dense() if value.layout != torch.strided else value.clone() for value in held]
    with pytest.raises(KernelError, match=match):
        adam_step(**arguments)
    for value, was in zip(held, before, strict=True):
        assert torch.equal(value.to_dense() if value.layout != torch.strided else value, was)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("shard", torch.ones(6, dtype=torch.float64), "shard has float64; wanted one of float32, bfloat16, float16"),
        ("grad", torch.ones(6, dtype=torch.int32), "grad has int32"),
        ("exp_avg", torch.ones(6, dtype=torch.float16), "exp_avg has float16; wanted one of float32, bfloat16: "),
        ("exp_avg_sq", torch.ones(6, dtype=torch.float16), "exp_avg_sq has float16"),
        ("copy_out", torch.ones(6, dtype=torch.float64), "copy_out has float64"),
        ("grad", torch.ones(5), "grad has 5 elements; wanted 6"),
        ("copy_out", torch.ones(7), "copy_out has 7 elements"),
        ("grad", torch.ones(12)[::2], "grad is not contiguous"),
        ("grad", torch.ones(2, 3).t(), "grad is not contiguous"),
        ("grad", torch.ones(6).to_sparse(), "grad is not contiguous"),
        ("grad", torch._neg_view(torch.ones(6)), "grad is not contiguous"),
        ("shard", torch.ones(6, device="meta"), "shard is on meta; wanted cpu"),
        ("grad", None, "grad is a NoneType; wanted a tensor"),
        ("shard", [1.0], "shard is a list; wanted a tensor"),
    ],
)
def test_tensors_that_it_does_not_take(name: str, value: Any, match: str) -> None:
    refused(match, **{name: value})


def test_a_wrapper_is_not_plain_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(6)
    with pytest.raises(KernelError, match="shard is a FakeTensor; wanted plain memory"):
        adam_step(fake, fake, fake, fake, **SETTINGS)


@pytest.mark.parametrize("other", ["grad", "exp_avg", "exp_avg_sq", "copy_out"])
def test_tensors_that_share_memory(other: str) -> None:
    whole = torch.ones(11)
    refused("share memory", shard=whole[:6], **{other: whole[5:]})
    refused("share memory", shard=whole[:6], **{other: whole[:6]})
    arguments = {name: torch.ones(5) for name in ("grad", "exp_avg", "exp_avg_sq", "copy_out")}
    adam_step(whole[:5], **{**arguments, other: whole[5:10]}, **SETTINGS)  # neighbours do not


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("step", 0, "step is 0"),
        ("step", 1.5, "step is 1.5; wanted the index"),
        ("lr", -1.0, "lr is -1"),
        ("lr", float("nan"), "lr is nan"),
        ("betas", (1.0, 0.9), r"betas\[0\] is 1"),
        ("betas", (0.9, -0.1), r"betas\[1\] is -0.1"),
        ("eps", -1e-8, "eps is"),
        ("weight_decay", float("inf"), "weight_decay is inf"),
        ("grad_factor", float("nan"), "grad_factor is -?nan; wanted a finite number; skip the update"),
    ],
)
def test_settings_out_of_range(name: str, value: Any, match: str) -> None:
    refused(match, **{name: value})


def test_an_instruction_set_that_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_NATIVE_ISA", "avx1024")
    refused("'avx1024' was asked for by DSX_NATIVE_ISA, but this build and processor offer: scalar")


def test_no_tensor_at_all_is_fine() -> None:
    adam_step(torch.ones(0), torch.ones(0), torch.ones(0), torch.ones(0), copy_out=torch.ones(0), **SETTINGS)


def test_the_boundary_refuses_what_the_python_side_would_not_send() -> None:
    memory = torch.ones(40)
    at = memory.data_ptr()
    good = {
        "shard": (at, 1),
        "grad": (at + 32, 1),
        "exp_avg": (at + 64, 1),
        "exp_avg_sq": (at + 96, 1),
        "copy_out": (0, 0),
        "step": 1,
        "lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "grad_factor": 1.0,
        "decoupled": True,
        "bias_correction": True,
        "threads": 1,
    }
    for changes, match in (
        ({"shard": (at, 9)}, "shard: 9 is no dtype code"),
        ({"shard": (0, 1)}, "shard has no memory"),
        ({"shard": (at + 2, 1)}, "starts within an element"),
        ({"shard": (at, 1, 1)}, "wanted .address, dtype code."),
        ({"exp_avg": (at + 64, 3)}, "fp32 or bf16 states"),
        ({"grad": (0, 0)}, "adam_step takes"),
    ):
        with pytest.raises(KernelError, match=match):
            _core.adam_step(8, **{**good, **changes})
    assert torch.equal(memory, torch.ones(40))
    _core.adam_step(8, **{**good, "threads": -3})
    assert not torch.equal(memory, torch.ones(40))


def test_refusals_do_not_hang_on_asserts() -> None:
    """The same under ``python -O``."""
    script = (
        "import torch\n"
        "from dsx.errors import KernelError\n"
        "from dsx_native.kernels import adam_step\n"
        "t = torch.ones(4)\n"
        "try:\n"
        "    adam_step(t, t, t, t, step=1, lr=1., betas=(.9, .9), eps=0., weight_decay=0., decoupled=True)\n"
        "except KernelError:\n"
        "    raise SystemExit(7)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], env=dict(os.environ), timeout=60, check=False)
    assert done.returncode == 7
