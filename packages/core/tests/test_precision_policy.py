"""The dtypes that a configuration asks for, and the sentence that says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dsx.config.root import DsxConfig
from dsx.errors import ConfigError
from dsx.precision.keep import cast_around_kept, kept_names
from dsx.precision.names import dtype_from_name, short_name
from dsx.precision.policy import PrecisionPolicy, policy_from

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
ON = {"enabled": True}


def policy(*, native: bool = True, **sections: Any) -> PrecisionPolicy:
    return policy_from(DsxConfig.model_validate(sections), native_bf16=native)


@pytest.mark.parametrize(
    ("sections", "parameter", "accumulate", "reduce", "master", "states"),
    [
        ({}, FP32, FP32, FP32, FP32, FP32),
        ({"bf16": ON}, BF16, FP32, FP32, FP32, FP32),
        ({"fp16": ON}, FP16, FP32, FP32, FP32, FP32),
        ({"bf16": ON, "communication_data_type": "bf16"}, BF16, FP32, BF16, FP32, FP32),
        ({"communication_data_type": "fp16"}, FP32, FP32, FP16, FP32, FP32),
        ({"bf16": ON, "data_types": {"grad_accum_dtype": "bf16"}}, BF16, BF16, BF16, FP32, FP32),
        ({"bf16": {**ON, "bf16_master_weights_and_grads": True}}, BF16, BF16, BF16, BF16, FP32),
        (
            {"bf16": {**ON, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            BF16,
            BF16,
            BF16,
            BF16,
            BF16,
        ),
        (
            {"bf16": {**ON, "bf16_master_weights_and_grads": True}, "data_types": {"grad_accum_dtype": "fp32"}},
            BF16,
            FP32,
            FP32,
            BF16,
            FP32,
        ),
        ({"fp16": {**ON, "fp16_master_weights_and_grads": True}}, FP16, FP16, FP16, FP16, FP32),
    ],
)
def test_dtypes(
    sections: dict[str, Any],
    parameter: torch.dtype,
    accumulate: torch.dtype,
    reduce: torch.dtype,
    master: torch.dtype,
    states: torch.dtype,
) -> None:
    found = policy(**sections)
    assert (found.parameter, found.compute) == (parameter, parameter)
    assert (found.accumulate, found.reduce, found.master, found.states) == (accumulate, reduce, master, states)
    assert found.autocast is None
    assert found.separate_master == (master != parameter)


def test_autocast_keeps_fp32_weights() -> None:
    for name, dtype in (("bf16", BF16), ("fp16", FP16)):
        found = policy(torch_autocast={**ON, "dtype": name})
        assert (found.parameter, found.master, found.accumulate) == (FP32, FP32, FP32)
        assert (found.autocast, found.compute) == (dtype, dtype)


def test_auto_follows_the_processor() -> None:
    for native in (True, False):
        assert policy(native=native, bf16={"enabled": "auto"}).parameter == (BF16 if native else FP32)
    assert policy(bf16={"enabled": "auto"}, fp16=ON).parameter == FP16
    assert policy(fp16={"enabled": "auto"}).parameter == FP32


def test_the_line_that_is_printed() -> None:
    """B14: it says in what gradients accumulate."""
    assert policy(bf16=ON).describe() == (
        "precision: parameters bf16, compute bf16, gradients accumulate in fp32, reduce in fp32, master fp32"
    )
    assert "compute bf16 by autocast" in policy(torch_autocast=ON).describe()
    low = policy(bf16={**ON, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True})
    assert low.describe().endswith("accumulate in bf16, reduce in bf16, master bf16, moments bf16")
    kept = PrecisionPolicy(parameter=BF16, keep_fp32=("a", "b", "c", "d", "e", "f"))
    assert kept.describe().endswith("kept in fp32: a, b, c, d and 2 more")


def test_inputs_and_buffers_are_cast_only_when_asked() -> None:
    assert policy(fp16=ON).inputs is None
    assert policy(fp16={**ON, "auto_cast": True}).inputs == FP16
    assert policy(bf16=ON).buffers is None
    assert policy(bf16=ON, data_types={"buffer_dtype": "bf16"}).buffers == BF16


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"fp16": ON, "bf16": ON}, "fp16.enabled and bf16.enabled are both true"),
        ({"bf16": ON, "torch_autocast": ON}, "torch_autocast.enabled keeps parameters in fp32, but bf16.enabled"),
        ({"torch_autocast": {**ON, "dtype": "fp32"}}, "casts nothing"),
        ({"bf16": {**ON, "bf16_optimizer_states": True}}, "without bf16.bf16_master_weights_and_grads"),
        ({"bf16": ON, "data_types": {"grad_accum_dtype": "fp16"}}, "grad_accum_dtype is fp16.*give bf16 or fp32"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "parameters are fp32: give fp32"),
        ({"bf16": ON, "data_types": {"param_dtype": "fp32"}}, "makes parameters bf16: leave the key out"),
    ],
)
def test_modes_that_exclude_each_other(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(**sections)


def test_names_of_dtypes() -> None:
    assert dtype_from_name("torch.BFloat16", key="k") == BF16
    assert dtype_from_name(FP16, key="k") == FP16
    assert [short_name(d) for d in (FP32, BF16, FP16, torch.float64, torch.int8)] == [
        "fp32",
        "bf16",
        "fp16",
        "fp64",
        "int8",
    ]
    with pytest.raises(
        ConfigError, match=r"k is 'flaot32', wanted one of fp32, fp16, bf16 \(did you mean 'float32'\?\)"
    ):
        dtype_from_name("flaot32", key="k")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(self.norm(x))
        return found


def model() -> nn.Sequential:
    return nn.Sequential(Block(), Block())


def keeping(*names: str) -> PrecisionPolicy:
    return policy(bf16=ON, data_types={"keep_in_fp32_modules": list(names)})


def test_kept_modules_by_parts_of_names() -> None:
    assert kept_names(keeping("norm"), model()) == {f"{i}.norm.{k}" for i in (0, 1) for k in ("weight", "bias")}
    assert kept_names(keeping("1.norm", "0.linear.bias"), model()) == {"1.norm.weight", "1.norm.bias", "0.linear.bias"}
    assert kept_names(keeping("lin*"), model()) == {f"{i}.linear.{k}" for i in (0, 1) for k in ("weight", "bias")}
    with pytest.raises(ConfigError, match="has 'nrom', but no parameter"):
        kept_names(keeping("nrom"), model())
    assert policy(data_types={"keep_in_fp32_modules": ["norm"]}).keep_fp32 == (), "all is fp32 anyway"


def test_the_models_own_wish_counts_by_default() -> None:
    wishing = model()
    wishing._keep_in_fp32_modules = ["norm", "absent"]  # type: ignore[assignment]
    assert len(kept_names(policy(bf16=ON), wishing)) == 4
    assert kept_names(policy(bf16=ON), model()) == set()
    assert kept_names(keeping("0.norm"), wishing) == {"0.norm.weight", "0.norm.bias"}


def test_a_model_with_kept_modules_runs_and_keeps_them_exact() -> None:
    net = model().to(BF16)
    kept = kept_names(keeping("norm"), net)
    for name, p in net.named_parameters():
        if name in kept:
            p.data = p.data.float()
    handles = cast_around_kept(net, kept, outside=BF16)
    seen: list[torch.dtype] = []
    net[0].norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))  # type: ignore[union-attr]
    out = net(torch.randn(2, 4, dtype=BF16))
    assert out.dtype == BF16
    assert seen == [FP32]
    out.sum().backward()
    assert net[0].norm.weight.grad.dtype == FP32  # type: ignore[union-attr]
    for handle in handles:
        handle.remove()
    assert len(handles) == 4
