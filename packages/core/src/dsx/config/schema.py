"""The JSON schema of the whole file, with the text under each field, for editors and for the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsx.config.compose import compose

if TYPE_CHECKING:
    from dsx.plugin.manager import PluginManager


def json_schema(plugins: PluginManager) -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of the configuration file that these plugins read."""
    schema = compose(plugins).model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "dsx configuration"}
