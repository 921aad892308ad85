"""Loss scaling: lifts small fp16 gradients above zero, and decides which updates are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from dsx.errors import PrecisionError
from dsx.precision.names import dtype_from_name

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig

GROWTH = 2.0
LARGEST_SCALE = 2.0**64
"""Growth stops here: a model whose gradients are all zero would otherwise drive the scale to infinity."""


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """How a loss scale behaves. Field names are those of the ``fp16`` section."""

    kind: Literal["none", "static", "dynamic"] = "none"
    initial: float = 1.0
    loss_scale_window: int = 1000
    """Good updates in a row after which a dynamic scale doubles."""
    hysteresis: int = 2
    """Overflows that a dynamic scale takes before it halves; it then halves at each, until the stock is refilled."""
    consecutive_hysteresis: bool = False
    """Refill the stock at each good update, instead of only when the scale grows."""
    min_loss_scale: float = 1.0
    skips_before_error: int = 50
    """Skips in a row, at the minimum, after which training stops with an error."""
    check: bool = True
    """Whether updates with an inf or nan gradient are refused at all."""


class LossScaler:
    """The scale of the loss, and the judge of each update.

    The engine multiplies the loss by ``scale`` before backward and the gradients by ``1 / scale`` in the update, reads
    ``scale`` once per update *before* ``judge``, and calls ``judge`` once for each update attempt.
    """

    def __init__(self, policy: ScalePolicy | None = None) -> None:
        self.policy = policy if policy is not None else ScalePolicy()
        self._scale = float(self.policy.initial)
        self._good = 0
        self._hysteresis = self.policy.hysteresis
        self._skips = 0

    @property
    def active(self) -> bool:
        """Whether losses are scaled at all."""
        return self.policy.kind != "none"

    @property
    def checks(self) -> bool:
        """Whether the engine must find out if the gradients are finite."""
        return self.policy.check

    @property
    def scale(self) -> float:
        """The factor for the losses of the current update; changes only in ``judge`` and ``load``."""
        return self._scale

    @property
    def skipped_in_a_row(self) -> int:
        """Updates refused at the lowest scale since one was accepted or the scale could still fall."""
        return self._skips

    def judge(self, finite: bool, *, report: str = "") -> bool:
        """Whether the update is to be made; adapts the scale to what was seen.

        ``report`` names the first bad parameter, its module and the step. Raises PrecisionError with it when
        ``skips_before_error`` updates in a row were refused at the lowest scale.
        """
        if not self.policy.check:
            return True
        if finite:
            self._accept()
            return True
        at_minimum = self._scale <= self.policy.min_loss_scale or self.policy.kind != "dynamic"
        self._skips = self._skips + 1 if at_minimum else 0
        self._good = 0
        self._back_off()
        if self._skips >= self.policy.skips_before_error:
            raise PrecisionError(self._complaint(report))
        return False

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "kind": self.policy.kind,
            "scale": self._scale,
            "good": self._good,
            "hysteresis": self._hysteresis,
            "skips": self._skips,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken. The state of another kind of scale is left aside: the configuration wins."""
        if state["kind"] != self.policy.kind:
            return
        self._skips = int(state["skips"])
        if self.policy.kind != "dynamic":
            return
        self._scale = max(float(state["scale"]), float(self.policy.min_loss_scale))
        self._good = int(state["good"])
        self._hysteresis = min(int(state["hysteresis"]), self.policy.hysteresis)

    def _accept(self) -> None:
        self._skips = 0
        if self.policy.kind != "dynamic":
            return
        if self.policy.consecutive_hysteresis:
            self._hysteresis = self.policy.hysteresis
        self._good += 1
        if self._good >= self.policy.loss_scale_window:
            self._good = 0
            self._hysteresis = self.policy.hysteresis
            self._scale = min(self._scale * GROWTH, LARGEST_SCALE)

    def _back_off(self) -> None:
        if self.policy.kind != "dynamic":
            return
        if self._hysteresis > 1:
            self._hysteresis -= 1
        else:
            self._scale = max(self._scale / GROWTH, float(self.policy.min_loss_scale))

    def _complaint(self, report: str) -> str:
        if self.policy.kind == "dynamic":
            place = f" at the minimum loss scale {self._scale:g}"
        elif self.policy.kind == "static":
            place = f" at the static loss scale {self._scale:g}"
        else:
            place = ""
        return (
            f"{self._skips} updates in a row had inf or nan gradients{place} and were skipped. "
            f"{report or 'No parameter was named.'} The weights are as they were before the first of them. "
            "Look for the cause in that module, lower the learning rate, or use bf16; "
            "fp16.skips_before_error sets how many skips are borne."
        )


def make_scaler(config: DsxConfig, *, parameter: torch.dtype | None = None) -> LossScaler:
    """The scaler that a configuration asks for.

    fp16, and autocast to fp16, are scaled by the keys of the ``fp16`` section: ``loss_scale`` 0 is dynamic, another
    value static. bf16 is only checked (``bf16.check_grad_overflow``), fp32 neither. ``parameter`` is the policy's
    dtype, needed where ``bf16.enabled`` was ``"auto"``.
    """
    fp16 = config.fp16
    autocast = config.torch_autocast
    scaled = fp16.enabled is True or (
        bool(autocast.enabled) and dtype_from_name(autocast.dtype, key="torch_autocast.dtype") == torch.float16
    )
    if scaled:
        dynamic = fp16.loss_scale == 0
        return LossScaler(
            ScalePolicy(
                kind="dynamic" if dynamic else "static",
                initial=max(2.0**fp16.initial_scale_power, fp16.min_loss_scale) if dynamic else fp16.loss_scale,
                loss_scale_window=fp16.loss_scale_window,
                hysteresis=fp16.hysteresis,
                consecutive_hysteresis=fp16.consecutive_hysteresis,
                min_loss_scale=fp16.min_loss_scale,
                skips_before_error=fp16.skips_before_error,
            )
        )
    bf16 = config.bf16.enabled is True or parameter == torch.bfloat16
    check = bf16 and bool(config.bf16.check_grad_overflow)
    return LossScaler(ScalePolicy(check=check, skips_before_error=fp16.skips_before_error))
