"""Sections that say in which number formats a model is kept, computed and reduced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from dsx.config.auto import Auto
from dsx.config.section import Section

_SPELLINGS = {
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "torch.float32": "fp32",
    "bf16": "bf16",
    "bfp16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "torch.float16": "fp16",
}


def _spelled(value: Any) -> Any:
    return _SPELLINGS.get(str(value).lower(), value) if value is not None else None


def _finite_scale(value: float) -> float:
    # NaN passes every comparison that pydantic's own bounds make, so the range is checked here.
    if not 0 <= value < float("inf"):
        raise PydanticCustomError("range", "0 means dynamic, any other scale must be finite and positive")
    return value


DTypeName = Annotated[Literal["fp32", "bf16", "fp16"], BeforeValidator(_spelled)]
"""A number format by its short name; torch's own names are read too."""

LossScale = Annotated[
    float,
    AfterValidator(_finite_scale),
    Field(json_schema_extra={"minimum": 0, "wanted": "0 (dynamic) or a finite number > 0"}),
]


class Fp16Section(Section):
    """``fp16``: compute in half precision, with fp32 master weights and a scaled loss."""

    enabled: Auto[bool] = False
    """Keep and compute the model in fp16. ``"auto"``: no, as fp16 needs a loss scale it is never chosen unasked."""
    auto_cast: bool = False
    """Cast floating-point inputs of the model to fp16. dsx does so unless this is given as false."""
    loss_scale: LossScale = 0.0
    """Factor on the loss. 0: dynamic, growing while gradients stay finite, halved where they do not. > 0: fixed."""
    initial_scale_power: int = Field(default=16, ge=0, le=126)
    """The dynamic scale begins at 2 to this power."""
    loss_scale_window: int = Field(default=1000, gt=0)
    """Updates without overflow after which the dynamic scale doubles."""
    hysteresis: int = Field(default=2, ge=1)
    """Overflows that are let pass before the dynamic scale is halved."""
    consecutive_hysteresis: bool = False
    """Refill the hysteresis after every update without overflow, not only when the scale grows."""
    min_loss_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The dynamic scale never falls below this."""
    skips_before_error: int = Field(default=50, gt=0)
    """Updates skipped in a row at the minimum scale after which training stops with a report. Own to dsx."""
    fp16_master_weights_and_grads: bool = False
    """Keep master weights and accumulated gradients in fp16 as well: less memory, less exact."""


class Bf16Section(Section):
    """``bf16`` (or ``bfloat16``): compute in bfloat16, with fp32 master weights. Needs no loss scale."""

    enabled: Auto[bool] = False
    """Keep and compute the model in bf16. ``"auto"``: where this processor multiplies bf16 without converting."""
    immediate_grad_update: bool = False
    """Add each gradient to its fp32 sum as it arrives. dsx always does so; the key is accepted as it is."""
    check_grad_overflow: bool = Field(
        default=True,
        json_schema_extra={"deepspeed": "off before June 2026, on since; in dsx always on"},
    )
    """Skip an update whose gradients are not finite, and report the first bad parameter."""
    bf16_master_weights_and_grads: bool = False
    """Keep master weights and accumulated gradients in bf16 as well: less memory, less exact."""
    bf16_optimizer_states: bool = False
    """Keep the optimizer's moments in bf16; needs bf16_master_weights_and_grads."""


class TorchAutocastSection(Section):
    """``torch_autocast``: fp32 weights, computed under ``torch.autocast``."""

    enabled: bool = False
    """Run forward under torch.autocast."""
    dtype: DTypeName = "bf16"
    """What autocast computes in: bf16 or fp16. With fp16 the loss is scaled as section fp16 says."""
    lower_precision_safe_modules: tuple[str, ...] | None = None
    """Accepted without effect: gradients of all modules travel in communication_data_type, which without it is fp32."""


class DataTypesSection(Section):
    """``data_types``: number formats beyond the choice of fp16 or bf16."""

    grad_accum_dtype: DTypeName | None = None
    """In which format gradients are summed over micro-batches. None: fp32, or the masters' where those are narrower."""
    param_dtype: DTypeName | None = None
    """Format of the parameters; if given it must be the one that fp16 or bf16 imply."""
    buffer_dtype: DTypeName | None = None
    """Cast floating-point buffers to this format. None: they keep their own."""
    keep_in_fp32_modules: tuple[str, ...] | Literal["auto"] = "auto"
    """Names (or parts of names) of modules that stay in fp32. ``"auto"``: those that the model names itself."""
