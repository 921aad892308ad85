"""A context around the model's constructor under ``dsx.construct``. This one begins with small random weights.

Turned on by ``"small_init": {"std": 0.02}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from pydantic import Field
from torch import nn

from dsx.plugin import PluginSpec, Section, hookimpl

if TYPE_CHECKING:
    from dsx.planning.plan import Plan


class InitSection(Section):
    """``small_init``: how matrices begin."""

    std: float | None = Field(default=None, gt=0)
    """Standard deviation of the weights of each Linear, whose biases are 0. None: as torch does."""


SPEC = PluginSpec(name="example-construct", api=1, summary="small first weights", sections={"small_init": InitSection})


@contextmanager
def small(std: float) -> Iterator[None]:
    """Within it, a Linear begins with normal numbers of this deviation."""

    def reset(linear: nn.Linear) -> None:
        nn.init.normal_(linear.weight, std=std)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)

    with patch.object(nn.Linear, "reset_parameters", reset):
        yield


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_construct(plan: Plan) -> AbstractContextManager[None] | None:
    """The context, where it is wanted."""
    std = plan.config.section(InitSection).std
    return small(std) if std is not None else None
