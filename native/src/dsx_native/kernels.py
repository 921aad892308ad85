"""The kernels as the registry hands them out: tensors in, checked, updated in place."""

from __future__ import annotations

import torch

from dsx.errors import KernelError
from dsx_native import _core
from dsx_native.memory import NOTHING, address, written

STATES = (torch.float32, torch.bfloat16)


def adam_step(
    shard: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    grad_factor: float = 1.0,
    copy_out: torch.Tensor | None = None,
    bias_correction: bool = True,
) -> None:
    """One Adam (``decoupled=False``) or AdamW update in place, in one pass over memory.

    ``shard``, ``grad`` and ``copy_out``: fp32, bf16 or fp16; ``exp_avg`` and ``exp_avg_sq``: fp32 or bf16; all
    contiguous on CPU, of one size, sharing no memory. The gradient is multiplied by ``grad_factor`` (unscaling times
    clipping) and left as it was. Arithmetic is fp32, results are rounded to nearest, ties to even; ``copy_out``
    receives the new weights. ``step`` is the index of this update, from 1. Runs on ``torch.get_num_threads()``
    threads. Raises KernelError, with nothing changed.
    """
    at_shard = address("shard", shard)
    n = shard.numel()
    at_grad = address("grad", grad, n=n)
    at_exp_avg = address("exp_avg", exp_avg, n=n, dtypes=STATES)
    at_exp_avg_sq = address("exp_avg_sq", exp_avg_sq, n=n, dtypes=STATES)
    at_copy = NOTHING if copy_out is None else address("copy_out", copy_out, n=n)
    if not isinstance(step, int):
        raise KernelError(f"step is {step!r}; wanted the index of this update as an int: pass int(step)")
    _core.adam_step(
        n,
        shard=at_shard,
        grad=at_grad,
        exp_avg=at_exp_avg,
        exp_avg_sq=at_exp_avg_sq,
        copy_out=at_copy,
        step=step,
        lr=float(lr),
        beta1=float(betas[0]),
        beta2=float(betas[1]),
        eps=float(eps),
        weight_decay=float(weight_decay),
        grad_factor=float(grad_factor),
        decoupled=decoupled,
        bias_correction=bias_correction,
        threads=torch.get_num_threads(),
    )
    written(shard, exp_avg, exp_avg_sq, copy_out)
