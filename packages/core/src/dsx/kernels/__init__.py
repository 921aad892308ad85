"""The torch reference of each core operation: the definition of correct that faster kernels are tested against.

Each is a function on tensors, in place, that multiplies the gradient by ``grad_factor``, updates weights and states,
and writes the new weights to ``copy_out`` where one is given. One file an operation, named after it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dsx.errors import KernelError, did_you_mean

OPERATIONS = ("adagrad_step", "adam_step", "lamb_step", "lion_step", "muon_step", "sgd_step")


def reference(operation: str) -> Callable[..., Any]:
    """The torch reference of an operation. Raises KernelError for an unknown name."""
    if operation not in OPERATIONS:
        known = ", ".join(OPERATIONS)
        raise KernelError(f"no operation {operation!r}{did_you_mean(operation, OPERATIONS)}; known: {known}")
    found: Callable[..., Any] = getattr(import_module(f"dsx.kernels.{operation}"), operation)
    return found
