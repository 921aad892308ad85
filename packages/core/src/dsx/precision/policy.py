"""Which dtype each tensor of a training has: parameters, compute, gradients, reduction, master weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dsx.errors import ConfigError
from dsx.precision.names import dtype_from_name, short_name

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.plugin.roles import Codec

_SHOWN = 4
"""Names that the precision line lists before it only counts."""


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """One training's dtypes, as a value. ``policy_from`` makes it from a configuration."""

    parameter: torch.dtype = torch.float32
    """Of the weights that the model's modules read."""
    compute: torch.dtype = torch.float32
    """Of matrix products: the parameters' dtype, or autocast's."""
    accumulate: torch.dtype = torch.float32
    """Of the gradient summed over micro-batches."""
    reduce: torch.dtype = torch.float32
    """Of gradients on the wire, unless they are coded."""
    master: torch.dtype = torch.float32
    """Of the weights that the optimizer updates."""
    autocast: torch.dtype | None = None
    """Dtype of ``torch.autocast`` around the forward pass; ``None``: no autocast."""
    keep_fp32: tuple[str, ...] = ()
    """Names of modules whose parameters stay fp32; see ``dsx.precision.keep``."""
    keep_fp32_from_model: bool = False
    """Whether the model's own ``_keep_in_fp32_modules`` counts too."""
    states: torch.dtype = torch.float32
    """Of the optimizer's moments."""
    inputs: torch.dtype | None = None
    """Floating-point inputs of the model are cast to this dtype; ``None``: left alone."""
    buffers: torch.dtype | None = None
    """Floating-point buffers of the model are cast to this dtype; ``None``: left alone."""
    gradient_codec: str | None = None
    """Name of the codec in which gradients travel, but for those of ``keep_fp32`` modules; ``None``: in ``reduce``."""
    codec: Codec | None = field(default=None, compare=False, repr=False)
    """That codec, once an engine is built: planning makes no objects."""

    @property
    def separate_master(self) -> bool:
        """Whether the optimizer's weights are other tensors than the model's."""
        return self.master != self.parameter

    def describe(self) -> str:
        """The precision line that is printed at start."""
        compute = f"compute {short_name(self.compute)}"
        if self.autocast is not None:
            compute += " by autocast"
        words = [
            f"parameters {short_name(self.parameter)}",
            compute,
            f"gradients accumulate in {short_name(self.accumulate)}",
            f"reduce in {short_name(self.reduce) if self.gradient_codec is None else self.gradient_codec + ' (codec)'}",
            f"master {short_name(self.master)}",
        ]
        if self.states != torch.float32:
            words.append(f"moments {short_name(self.states)}")
        if self.keep_fp32:
            more = len(self.keep_fp32) - _SHOWN
            words.append(
                f"kept in fp32: {', '.join(self.keep_fp32[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")
            )
        return "precision: " + ", ".join(words)


def policy_from(config: DsxConfig, *, native_bf16: bool) -> PrecisionPolicy:
    """The policy that a configuration asks for.

    ``native_bf16`` decides where ``bf16.enabled`` is ``"auto"``: bf16 where the processor multiplies it, else fp32.
    Raises ConfigError for modes that exclude each other and dtypes that do not fit the mode.
    """
    mode = _mode(config, native_bf16=native_bf16)
    autocast = _autocast(config, mode)
    low = mode == torch.bfloat16 and config.bf16.bf16_master_weights_and_grads
    low = low or (mode == torch.float16 and config.fp16.fp16_master_weights_and_grads)
    states = torch.bfloat16 if mode == torch.bfloat16 and _moments_in_bf16(config) else torch.float32
    accumulate = _accumulate(config, mode, low=low)
    wire = config.communication_data_type
    _check_parameter_dtype(config, mode)
    kept, from_model = _kept(config.data_types.keep_in_fp32_modules, mode)
    return PrecisionPolicy(
        parameter=mode,
        compute=autocast if autocast is not None else mode,
        accumulate=accumulate,
        reduce=accumulate if wire is None else dtype_from_name(wire, key="communication_data_type"),
        master=mode if low else torch.float32,
        autocast=autocast,
        keep_fp32=kept,
        keep_fp32_from_model=from_model,
        states=states,
        inputs=torch.float16 if mode == torch.float16 and config.fp16.auto_cast else None,
        buffers=_optional_dtype(config.data_types.buffer_dtype, "data_types.buffer_dtype"),
        gradient_codec=config.gradient_codec,
    )


def _mode(config: DsxConfig, *, native_bf16: bool) -> torch.dtype:
    """The parameters' dtype. A value that is no bool stands at ``"auto"``."""
    fp16 = config.fp16.enabled is True
    bf16 = config.bf16.enabled if isinstance(config.bf16.enabled, bool) else native_bf16 and not fp16
    if fp16 and bf16:
        raise ConfigError("fp16.enabled and bf16.enabled are both true, but a model has one parameter dtype: keep one")
    if bf16:
        return torch.bfloat16
    return torch.float16 if fp16 else torch.float32


def _autocast(config: DsxConfig, mode: torch.dtype) -> torch.dtype | None:
    if not config.torch_autocast.enabled:
        return None
    if mode != torch.float32:
        raise ConfigError(
            f"torch_autocast.enabled keeps parameters in fp32, but {short_name(mode)}.enabled makes them "
            f"{short_name(mode)}: switch one of the two off"
        )
    dtype = dtype_from_name(config.torch_autocast.dtype, key="torch_autocast.dtype")
    if dtype == torch.float32:
        raise ConfigError("torch_autocast.dtype is fp32, which casts nothing: give bf16 or fp16, or switch it off")
    return dtype


def _moments_in_bf16(config: DsxConfig) -> bool:
    if not config.bf16.bf16_optimizer_states:
        return False
    if not config.bf16.bf16_master_weights_and_grads:
        raise ConfigError(
            "bf16.bf16_optimizer_states is true without bf16.bf16_master_weights_and_grads: set both, or give the "
            'optimizer params {"state_dtype": "bf16"} to keep fp32 masters with bf16 moments'
        )
    return True


def _accumulate(config: DsxConfig, mode: torch.dtype, *, low: bool) -> torch.dtype:
    wanted = _optional_dtype(config.data_types.grad_accum_dtype, "data_types.grad_accum_dtype")
    if wanted is None:
        return mode if low else torch.float32
    if wanted not in (mode, torch.float32):
        raise ConfigError(
            f"data_types.grad_accum_dtype is {short_name(wanted)}, but parameters are {short_name(mode)}: "
            f"give {' or '.join(dict.fromkeys((short_name(mode), 'fp32')))}"
        )
    return wanted


def _check_parameter_dtype(config: DsxConfig, mode: torch.dtype) -> None:
    wanted = _optional_dtype(config.data_types.param_dtype, "data_types.param_dtype")
    if wanted is not None and wanted != mode:
        raise ConfigError(
            f"data_types.param_dtype is {short_name(wanted)}, but the precision mode makes parameters "
            f"{short_name(mode)}: leave the key out, or change fp16.enabled or bf16.enabled"
        )


def _kept(value: Any, mode: torch.dtype) -> tuple[tuple[str, ...], bool]:
    """(module names, whether the model's own list counts). Nothing is to be kept where all is fp32."""
    if mode == torch.float32:
        return (), False
    if value is None or isinstance(value, (list, tuple)):
        return tuple(value or ()), False
    return (), True


def _optional_dtype(value: Any, key: str) -> torch.dtype | None:
    return None if value is None else dtype_from_name(value, key=key)
