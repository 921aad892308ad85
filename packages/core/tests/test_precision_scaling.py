"""The loss scale: growth, back-off, hysteresis, errors, and going on from a saved state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optim_helpers import EVERY, Bucket

from dsx.config.root import DsxConfig
from dsx.errors import PrecisionError
from dsx.precision.overflow import first_bad, overflow_report, owner_of
from dsx.precision.scaling import LARGEST_SCALE, LossScaler, ScalePolicy, make_scaler


def scaler(**fp16: Any) -> LossScaler:
    return make_scaler(DsxConfig.model_validate({"fp16": {"enabled": True, **fp16}}))


def judge(found: LossScaler, pattern: str) -> list[float]:
    """The scale after each update: ``+`` a good one, ``-`` an overflow."""
    scales = []
    for sign in pattern:
        assert found.judge(sign == "+") is (sign == "+")
        scales.append(found.scale)
    return scales


def test_which_modes_scale_and_check() -> None:
    def made(**sections: Any) -> LossScaler:
        return make_scaler(DsxConfig.model_validate(sections))

    on = {"enabled": True}
    assert [(s.active, s.checks, s.scale) for s in (made(), made(bf16=on), made(fp16=on))] == [
        (False, False, 1.0),
        (False, True, 1.0),
        (True, True, 65536.0),
    ]
    assert made(bf16={**on, "check_grad_overflow": False}).checks is False
    assert make_scaler(DsxConfig.model_validate({"bf16": {"enabled": "auto"}}), parameter=torch.bfloat16).checks is True
    assert made(torch_autocast={**on, "dtype": "fp16"}, fp16={"initial_scale_power": 4}).scale == 16.0
    assert made(torch_autocast=on).active is False
    assert made(fp16={**on, "loss_scale": 128}).policy.kind == "static"
    assert made(fp16={**on, "initial_scale_power": 0, "min_loss_scale": 8}).scale == 8.0


def test_nothing_is_checked_in_fp32() -> None:
    assert make_scaler(DsxConfig()).judge(False) is True


def test_grows_after_a_window_of_good_updates() -> None:
    found = scaler(initial_scale_power=2, loss_scale_window=3, hysteresis=1)
    assert judge(found, "++++++") == [4, 4, 8, 8, 8, 16]
    assert judge(found, "+-+++") == [16, 8, 8, 8, 16], "an overflow begins the count anew"


def test_hysteresis_is_used_up_and_refilled_by_growth() -> None:
    found = scaler(initial_scale_power=4, loss_scale_window=2, hysteresis=3)
    assert judge(found, "---") == [16, 16, 8]
    assert judge(found, "-") == [4], "the stock is used up: each overflow halves"
    assert judge(found, "+-") == [4, 2], "one good update does not refill it"
    assert judge(found, "++---") == [2, 4, 4, 4, 2], "growth does"


def test_consecutive_hysteresis_is_refilled_by_each_good_update() -> None:
    found = scaler(initial_scale_power=4, loss_scale_window=100, hysteresis=2, consecutive_hysteresis=True)
    assert judge(found, "-+-+--") == [16, 16, 16, 16, 16, 8]


def test_falls_no_lower_than_the_minimum() -> None:
    found = scaler(initial_scale_power=3, hysteresis=1, min_loss_scale=3)
    assert judge(found, "---") == [4, 3, 3]


def test_growth_has_an_end() -> None:
    found = LossScaler(ScalePolicy(kind="dynamic", initial=LARGEST_SCALE / 2, loss_scale_window=1))
    assert judge(found, "++") == [LARGEST_SCALE, LARGEST_SCALE]


def test_the_scale_of_this_update_is_read_before_it_is_judged() -> None:
    """B18: window 1 doubles the scale at this very update; the norm is unscaled by the one read before."""
    found = scaler(initial_scale_power=8, loss_scale_window=1)
    gradient = torch.tensor([3.0, 4.0]) * found.scale
    used = found.scale
    assert found.judge(True) is True
    assert found.scale == 512.0
    assert float(gradient.norm()) / used == 5.0


def test_a_static_scale_never_moves() -> None:
    """B93: 128 stays 128 through good updates and overflows; an overflow skips."""
    found = scaler(loss_scale=128, loss_scale_window=1)
    assert found.active
    assert judge(found, "+++-+--+") == [128.0] * 8


def test_endless_skipping_ends_with_the_report() -> None:
    """B17: after the set number of skips in a row at the minimum, an error that names parameter, module and step."""
    found = scaler(initial_scale_power=2, hysteresis=1, skips_before_error=3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert judge(found, "--") == [2, 1], "on the way down nothing is counted"
    for step in (2, 3):
        assert found.judge(False, report=overflow_report(model, "1.weight", step=step, scale=found.scale)) is False
    with pytest.raises(PrecisionError) as caught:
        found.judge(False, report=overflow_report(model, "1.weight", step=4, scale=found.scale))
    text = str(caught.value)
    for word in (
        "3 updates in a row",
        "minimum loss scale 1 ",
        "Update 4",
        "'1.weight'",
        "module '1' (Linear)",
        "skips_before_error",
    ):
        assert word in text


@pytest.mark.parametrize("sections", [{"fp16": {"enabled": True, "loss_scale": 8}}, {"bf16": {"enabled": True}}])
def test_endless_skipping_ends_without_a_dynamic_scale_too(sections: dict[str, Any]) -> None:
    """B17: a static scale, and bf16, are always at their minimum. A good update forgives."""
    sections.setdefault("fp16", {})["skips_before_error"] = 3
    found = make_scaler(DsxConfig.model_validate(sections))
    judge(found, "--+--")
    with pytest.raises(PrecisionError, match="3 updates in a row"):
        found.judge(False)


def test_the_saved_state_goes_on() -> None:
    """B16: window 4; 3 good updates, save, load, 1 good update: doubles as in the unbroken run."""
    unbroken, first, second = (scaler(loss_scale_window=4, initial_scale_power=4) for _ in range(3))
    assert judge(unbroken, "++++")[-1] == 32
    judge(first, "+++")
    second.load(copy.deepcopy(first.state()))
    assert judge(second, "+") == [32]


@given(st.text("+-", max_size=30), st.text("+-", max_size=30), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_stopping_changes_nothing(before: str, after: str, window: int, hysteresis: int, refill: bool) -> None:
    """B16: scale, good-step count, hysteresis and skips are all restored."""
    policy = ScalePolicy("dynamic", 16.0, window, hysteresis, refill, skips_before_error=1000)
    unbroken, first, second = LossScaler(policy), LossScaler(policy), LossScaler(policy)
    judge(first, before)
    judge(unbroken, before)
    second.load(first.state())
    assert judge(second, after) == judge(unbroken, after)
    assert second.state() == unbroken.state()
    assert second.skipped_in_a_row == unbroken.skipped_in_a_row


def test_the_state_of_another_kind_is_left_aside() -> None:
    static, dynamic = scaler(loss_scale=128), scaler(initial_scale_power=4)
    judge(dynamic, "++")
    before = dynamic.state()
    dynamic.load(static.state())
    assert dynamic.state() == before
    static.load(before)
    assert static.scale == 128
    other = scaler(loss_scale=64)
    other.load(static.state())
    assert other.scale == 64, "a new static scale of the configuration holds"


def test_a_loaded_scale_respects_the_minimum() -> None:
    low, high = scaler(initial_scale_power=1), scaler(min_loss_scale=16)
    high.load(low.state())
    assert high.scale == 16


@pytest.mark.parametrize("name", EVERY)
def test_a_refused_update_is_as_if_it_had_never_been(name: str) -> None:
    """B15: inf at update 1, then clean ones: the skip keeps each bit, the end equals a run without it."""
    shapes = [(3, 5), (7,), (2, 3, 4)]
    seen, spared = Bucket(shapes), Bucket(shapes)
    optimizer, peer = EVERY[name](seen.masters), EVERY[name](spared.masters)
    found = scaler(initial_scale_power=4, hysteresis=1)
    clean = [torch.randn(seen.numel, generator=torch.Generator().manual_seed(k)) for k in range(6)]
    for k, gradient in enumerate((clean[0], torch.full_like(clean[0], torch.inf), *clean[1:])):
        scale = found.scale
        seen.grad.copy_(gradient * scale)
        before = seen.flat.clone(), copy.deepcopy(optimizer.state_dict()["state"])
        if found.judge(bool(seen.grad.isfinite().all())):
            optimizer.update(seen.pieces(), factor=1.0 / scale)
        else:
            assert k == 1
            torch.testing.assert_close(seen.flat, before[0], rtol=0, atol=0)
            torch.testing.assert_close(optimizer.state_dict()["state"], before[1], rtol=0, atol=0)
    for gradient in clean:
        spared.grad.copy_(gradient)
        peer.update(spared.pieces())
    torch.testing.assert_close(seen.flat, spared.flat, rtol=0, atol=0)
    assert found.scale == 8.0, "halved once"


def test_reports() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.LayerNorm(2)))
    assert overflow_report(model, "1.0.bias", step=7) == (
        "Update 7: the first inf or nan gradient is that of parameter '1.0.bias', in module '1.0' (LayerNorm)."
    )
    assert "(loss scale 8)" in overflow_report(model, None, step=7, scale=8.0)
    assert "norm is not finite" in overflow_report(model, None, step=7)
    assert overflow_report(torch.nn.Linear(1, 1), "weight", step=0).endswith("in the model itself (Linear).")
    assert owner_of(model, "gone.weight") == ("", model)


def test_the_first_bad_gradient() -> None:
    good, bad = torch.zeros(3), torch.tensor([0.0, torch.nan])
    assert first_bad([("a", good), ("b", None), ("c", bad), ("d", -bad / 0)]) == "c"
    assert first_bad([("a", good), ("b", torch.zeros(0))]) is None
