"""``activation_checkpointing.modules``: modules that the configuration names are checkpointed."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from dsx.activation.modules import Method, apply, original
from dsx.activation.settings import settings_from
from dsx.errors import ConfigError, did_you_mean
from dsx.plugin.kinds import ACTIVATION_CHECKPOINT, PARTITIONER
from dsx.plugin.types import ModelPass, Phase

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.plugin.roles import Partitioner


def chosen_passes(config: DsxConfig) -> Iterator[ModelPass]:
    """The pass that checkpoints the modules which the configuration names; none where it names none."""
    section = config.activation_checkpointing
    if not section.modules:
        return

    def run(model: nn.Module, plan: object, method: Method, partitioner: Partitioner) -> nn.Module:
        refuse_unmatched(model, section.modules)
        apply(
            model,
            names=section.modules,
            classes=section.modules,
            settings=settings_from(section),
            method=method,
            partitioner=partitioner,
        )
        return model

    uses = ((ACTIVATION_CHECKPOINT, section.method), (PARTITIONER, section.partitioner))
    yield ModelPass("activation-checkpointing", Phase.REWRITE, run, uses)


def refuse_unmatched(model: nn.Module, asked: tuple[str, ...]) -> None:
    """Raise a ConfigError where one of these names no module of the model, by name or by class."""
    names = [name for name, _ in model.named_modules() if name]
    kinds = {original(module).__name__ for name, module in model.named_modules() if name}
    for one in asked:
        if one not in kinds and not any(fnmatch.fnmatchcase(name, one) for name in names):
            raise ConfigError(
                f"activation_checkpointing.modules: found {one!r}, which matches no module"
                f"{did_you_mean(one, [*kinds, *names])}; wanted names in the model, with wildcards, or its classes: "
                f"{', '.join(sorted(kinds))}"
            )
