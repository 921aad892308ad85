"""One model of the whole file: the core's own keys, and a section for each that an installed plugin owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from dsx.config.root import DsxConfig

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager


def compose(plugins: PluginManager) -> type[DsxConfig]:
    """The configuration model of these plugins; frozen, as every section is. An absent section has its defaults."""
    fields: dict[str, Any] = {
        key: (model, Field(default_factory=model, description=_summary(model.__doc__)))
        for key, (_, model) in plugins.sections.items()
    }
    if not fields:
        return DsxConfig
    return create_model(
        "DsxConfig", __base__=DsxConfig, __module__=DsxConfig.__module__, __doc__=DsxConfig.__doc__, **fields
    )


def _summary(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0]
