"""A model pass: a change to the model on its way into the engine. This one freezes parameters by name.

Turned on by ``"freeze": {"names": ["embed.*"]}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import nn

from dsx.errors import ConfigError, did_you_mean
from dsx.plugin import ModelPass, Phase, PluginSpec, Section, hookimpl

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.planning.plan import Plan


class FreezeSection(Section):
    """``freeze``: parameters that do not train."""

    names: tuple[str, ...] = ()
    """Their names, with wildcards."""


SPEC = PluginSpec(name="example-pass", api=1, summary="freezes parameters", sections={"freeze": FreezeSection})


def freeze(model: nn.Module, plan: Plan) -> nn.Module:
    """The model, with the named parameters frozen. A name that matches nothing is an error."""
    params = dict(model.named_parameters())
    for pattern in plan.config.section(FreezeSection).names:
        chosen = [name for name in params if fnmatchcase(name, pattern)]
        if not chosen:
            raise ConfigError(
                f"freeze.names: found {pattern!r}, which matches no parameter{did_you_mean(pattern, params)}; wanted "
                "names of parameters, with wildcards\n    what to do: correct it, or leave it out"
            )
        for name in chosen:
            params[name].requires_grad_(False)
    return model


@hookimpl
def dsx_plugin() -> PluginSpec:
    """Who this is."""
    return SPEC


@hookimpl
def dsx_passes(config: DsxConfig) -> Iterator[ModelPass]:
    """The pass, where there is something to freeze. A pass that uses a component names it in ``uses``."""
    if config.section(FreezeSection).names:
        yield ModelPass("freeze", Phase.REWRITE, freeze)
