"""One model from the core and its plugins: sections by class, what was given, replaced values, schema, explanation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_plugins import manager, plugin
from pydantic import Field

from dsx.config.auto import AUTO
from dsx.config.compose import compose
from dsx.config.explain import explain
from dsx.config.load import load_config
from dsx.config.root import DsxConfig
from dsx.config.schema import json_schema
from dsx.errors import ConfigError
from dsx.plugin import Auto, Resolved, Section
from dsx.plugin.manager import PluginManager


class Offload(Section):
    """Where a shard rests."""

    device: str = "none"
    """none, cpu or file."""


class Zero(Section):
    """Shards training state."""

    stage: int = Field(default=0, ge=0, le=3)
    """How much is sharded."""
    prefetch: Auto[int] = Field(default=AUTO, alias="stage3_prefetch", json_schema_extra={"deepspeed": "takes 5e7"})
    """Elements gathered ahead."""
    offload: Offload | None = None
    """Where the optimizer's state rests."""


@pytest.fixture
def plugins() -> PluginManager:
    return manager(plugin("zero", sections={"zero_optimization": Zero}))


def load(source: dict[str, Any], plugins: PluginManager) -> DsxConfig:
    return load_config(source, plugins=plugins)


def test_a_plugin_finds_its_section_by_class(plugins: PluginManager) -> None:
    config = load({"zero_optimization": {"stage": 2}}, plugins)
    assert config.section(Zero).stage == 2
    assert config.section(Zero).offload is None


def test_an_absent_section_has_its_defaults(plugins: PluginManager) -> None:
    assert load({}, plugins).section(Zero) == Zero()
    assert load({"zero_optimization": None}, plugins).section(Zero) == Zero()
    assert DsxConfig().section(Zero) == Zero()


def test_no_plugin_no_other_model() -> None:
    assert compose(manager()) is DsxConfig


def test_has_tells_given_from_default_under_every_spelling(plugins: PluginManager) -> None:
    config = load({"bfloat16": {"enabled": True}, "zero_optimization": {"stage3_prefetch": 8}, "seed": 1234}, plugins)
    assert config.has("bf16.enabled")
    assert config.has("bfloat16")
    assert config.has("zero_optimization.prefetch")
    assert config.has("zero_optimization.stage3_prefetch")
    assert config.has("seed")
    assert not config.has("zero_optimization.stage")
    assert not config.has("fp16")
    assert not config.has("see")


def test_with_values_replaces_checks_and_remembers_what_was_given(plugins: PluginManager) -> None:
    config = load({"train_batch_size": "auto", "optimizer": {"type": "Adam", "params": {"lr": "auto"}}}, plugins)
    changed = config.with_values(
        {
            "train_batch_size": 8,
            "optimizer.params.lr": 0.1,
            "zero_optimization.stage3_prefetch": 5,
            "fp16.auto_cast": True,
        }
    )
    assert type(changed) is type(config)
    assert (changed.train_batch_size, changed.section(Zero).prefetch, changed.fp16.auto_cast) == (8, 5, True)
    assert changed.optimizer is not None
    assert changed.optimizer.params == {"lr": 0.1}
    assert changed.has("train_batch_size")
    assert not changed.has("zero_optimization")
    assert config.train_batch_size is AUTO
    with pytest.raises(ConfigError, match=r"zero_optimization.stage: found -1, .*greater than or equal to 0"):
        config.with_values({"zero_optimization.stage": -1})
    with pytest.raises(ConfigError, match=r"stag: unknown key \(did you mean 'stage'\?\)"):
        config.with_values({"zero_optimization.stag": 1})
    assert changed.with_values({"zero_optimization.offload.device": "cpu"}).section(Zero).offload == Offload(
        device="cpu"
    )


def test_schema_holds_every_key_with_its_text(plugins: PluginManager) -> None:
    schema = json.loads(json.dumps(json_schema(plugins)))
    assert schema["properties"]["gradient_clipping"]["description"].startswith("Largest norm")
    assert schema["additionalProperties"] is False
    zero = schema["$defs"]["Zero"]["properties"]
    assert zero["stage"]["description"] == "How much is sharded."
    assert {"const": "auto"} in zero["stage3_prefetch"]["anyOf"]


def test_every_field_of_the_core_is_documented() -> None:
    def undocumented(model: type[Section], prefix: str) -> list[str]:
        missing = [prefix + name for name, field in model.model_fields.items() if not field.description]
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                missing += undocumented(field.annotation, f"{prefix}{name}.")
        return missing

    assert undocumented(DsxConfig, "") == []


def test_explain_says_value_source_and_reason(plugins: PluginManager) -> None:
    raw = {"zero_optimization": {"stage": 1}, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "amp": False}
    config = load(raw, plugins).with_values({"zero_optimization.prefetch": 64})
    resolved = [Resolved("zero_optimization.stage3_prefetch", 64, "a tenth of the model")]
    rows = {row.key: row for row in explain(config, resolved=resolved, raw=raw)}
    assert (rows["zero_optimization.stage"].value, rows["zero_optimization.stage"].source) == ("1", "given")
    prefetch = rows["zero_optimization.stage3_prefetch"]
    assert (prefetch.value, prefetch.source, prefetch.why) == ("64", "auto", "a tenth of the model")
    assert prefetch.deepspeed == "takes 5e7"
    assert (rows["gradient_clipping"].source, rows["gradient_clipping"].value) == ("default", "0.0")
    assert "1.0" in rows["gradient_clipping"].deepspeed
    assert (rows["optimizer.params.lr"].value, rows["optimizer.params.lr"].source) == ("0.001", "given")
    assert rows["amp"].source == "unused"
