"""Ways of computing activations again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import ACTIVATION_CHECKPOINT
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Called as ``f(function, *args, **kwargs)`` in place of ``function(*args, **kwargs)``.

    One with an argument ``settings`` of its own is given the section's, as ``dsx.activation.ActivationSettings``.
    """
    yield Component(
        ACTIVATION_CHECKPOINT,
        "non_reentrant",
        load="dsx.activation.recompute:checkpoint",
        aliases=("torch",),
        summary="torch's saved-tensor hooks",
    )
    yield Component(
        ACTIVATION_CHECKPOINT,
        "reentrant",
        load="dsx.activation.recompute:reentrant",
        summary="torch's autograd function",
    )
