"""Kernels: the best score wins, forcing and requiring refuse what cannot run, and every refusal says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_plugins import manager, plugin
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.errors import KernelError, PluginError
from dsx.plugin import Kernel, Score
from dsx.plugin.manager import PluginWarning
from dsx.registry.registry import Registry


def kernel(
    variant: str, score: int, *, why: str = "as a test says", supports: Any = None, operation: str = "adam_step"
) -> Kernel:
    return Kernel(operation, variant, load=lambda: lambda: variant, score=lambda: Score(score, why), supports=supports)


def registry(*kernels: Kernel, forced: str = "") -> Registry:
    return Registry(manager(plugin("shop", dsx_components=lambda: kernels)), kernels=forced)


def fp32_only(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32


def test_best_score_wins() -> None:
    known = registry(kernel("torch", 1), kernel("native", 7), kernel("gpu", 0, why="no device"))
    assert known.kernel("adam_step")() == "native"
    assert [name for name, _ in known.scores("adam_step")] == ["native", "torch", "gpu"]


@settings(deadline=None)  # a loaded machine is no failure
@given(st.permutations(["a", "b", "c", "d"]), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_choice_does_not_depend_on_the_order_of_offers(order: list[str], scores: list[int]) -> None:
    by_name = dict(zip("abcd", scores, strict=True))
    known = registry(*(kernel(name, by_name[name]) for name in order))
    best = max(scores)
    if best == 0:
        with pytest.raises(KernelError):
            known.kernel("adam_step")
    else:
        assert known.kernel("adam_step")() == min(name for name in "abcd" if by_name[name] == best)


def test_tensor_that_the_best_does_not_take_goes_to_the_next() -> None:
    known = registry(kernel("torch", 1), kernel("native", 7, supports=fp32_only))
    assert known.kernel("adam_step", like=torch.zeros(2))() == "native"
    assert known.kernel("adam_step", like=torch.zeros(2, dtype=torch.float64))() == "torch"


def test_nothing_that_can_run_gives_every_reason() -> None:
    known = registry(kernel("gpu", 0, why="no device"), kernel("native", 2, supports=fp32_only))
    with pytest.raises(KernelError) as caught:
        known.kernel("adam_step", like=torch.zeros(1, dtype=torch.bfloat16))
    assert "gpu: no device" in str(caught.value)
    assert "native: does not take tensors of torch.bfloat16 on cpu" in str(caught.value)


def test_probe_that_fails_counts_as_not_here() -> None:
    bad = Kernel("adam_step", "bad", load=lambda: lambda: "bad", score=lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    known = registry(bad, kernel("torch", 1))
    with pytest.warns(PluginWarning, match=r"(?s)adam_step=bad of plugin 'shop' \(acme-shop 1.0\).*Zero.*what to do"):
        assert known.kernel("adam_step")() == "torch"
    assert "ZeroDivisionError" in dict(known.scores("adam_step"))["bad"].why


def test_environment_forces_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_KERNELS", "adam_step=torch, lion_step = torch,")
    offer = [kernel("torch", 1), kernel("native", 7), kernel("torch", 1, operation="lion_step")]
    known = Registry(manager(plugin("shop", dsx_components=lambda: offer)))
    assert known.kernel("adam_step")() == "torch"


@pytest.mark.parametrize(
    ("forced", "words"),
    [
        ("adam_step", "wanted operation=variant"),
        ("=torch", "wanted operation=variant"),
        ("adam_stp=torch", "unknown kernel operation 'adam_stp' (did you mean 'adam_step'?)"),
        ("adam_step=torh", "names an unknown variant (did you mean 'torch'?)"),
        ("adam_step=native", "it needs dsx-native: pip install dsx-native"),
        ("adam_step=torch,adam_step=gpu", "twice: found torch and gpu"),
    ],
)
def test_bad_forcing_is_refused_at_once(forced: str, words: str) -> None:
    with pytest.raises(KernelError) as caught:
        registry(kernel("torch", 1), kernel("gpu", 0, why="no device"), forced=forced)
    assert words in str(caught.value)


def test_forcing_what_cannot_run_is_an_error_with_the_reason() -> None:
    known = registry(kernel("torch", 1), kernel("gpu", 0, why="no device"), forced="adam_step=gpu")
    with pytest.raises(KernelError, match="no device"):
        known.kernel("adam_step")
    strict = registry(kernel("torch", 1), kernel("native", 7, supports=fp32_only), forced="adam_step=native")
    with pytest.raises(KernelError, match="does not take tensors"):
        strict.kernel("adam_step", like=torch.zeros(1, dtype=torch.float64))


def test_requiring_makes_a_fall_back_an_error() -> None:
    known = registry(kernel("torch", 1), kernel("native", 7, supports=fp32_only))
    assert known.require("adam_step", "native")() == "native"
    with pytest.raises(KernelError, match="forced or required"):
        known.kernel("adam_step", like=torch.zeros(1, dtype=torch.float64))
    with pytest.raises(KernelError, match="no device"):
        registry(kernel("gpu", 0, why="no device")).require("adam_step", "gpu")


def test_two_offers_of_one_variant_clash() -> None:
    plugins = manager(
        plugin("a", dsx_components=lambda: [kernel("x", 1)]), plugin("b", dsx_components=lambda: [kernel("x", 2)])
    )
    with pytest.raises(PluginError, match=r"adam_step=x is offered by 'a' .* and 'b'"):
        Registry(plugins, kernels="")
