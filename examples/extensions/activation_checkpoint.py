"""A way of computing activations again in backward. This one keeps the products of matrices, and repeats the rest.

Turned on by ``"activation_checkpointing": {"modules": ["Block"], "method": "keep_products"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from dsx.plugin import ACTIVATION_CHECKPOINT, Component, PluginSpec, hookimpl

SPEC = PluginSpec(name="example-recompute", api=1, summary="recomputes all but products of matrices")

_ATEN = torch.ops.aten
KEPT = frozenset({_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default})
"""Costly to repeat; what stands between them is cheap."""


def policy(context: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    """Whether the result of one operation is kept."""
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def keep_products(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, of which backward repeats all but the products."""
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_components() -> Iterator[Component[Any]]:
    """The method, under its name."""
    yield Component(ACTIVATION_CHECKPOINT, "keep_products", load=lambda: keep_products, summary="keeps matrix products")
