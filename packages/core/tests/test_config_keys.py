"""Keys: every one that does not belong is named with its path and what was meant, all at once."""

from __future__ import annotations

import pytest
from fake_plugins import manager, plugin

from dsx.config.load import load_config
from dsx.errors import ConfigError
from dsx.plugin import Section
from dsx.plugin.catalog import GONE, SECTIONS
from dsx.plugin.discovery import Found
from dsx.plugin.manager import PluginManager, PluginWarning


class Inner(Section):
    """A section below a section."""

    depth: int = 1
    """How deep."""


class Zero(Section):
    """A section as a plugin would own it."""

    stage: int = 0
    """How much is sharded."""
    inner: Inner = Inner()
    """More."""


@pytest.fixture
def plugins() -> PluginManager:
    return manager(plugin("zero", sections={"zero_optimization": Zero}))


def refused(source: object, plugins: PluginManager) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, plugins=plugins)  # type: ignore[arg-type]
    return str(caught.value)


def test_misspelt_key_is_refused_with_the_key_that_was_meant(plugins: PluginManager) -> None:
    """B01: at top level, and inside a plugin's section with the full path."""
    message = refused({"gradient_clipp1ng": 1.0}, plugins)
    assert "gradient_clipp1ng: unknown key (did you mean 'gradient_clipping'?)" in message
    message = refused({"zero_optimization": {"stagee": 2, "inner": {"dept": 1}}}, plugins)
    assert "zero_optimization.stagee: unknown key (did you mean 'stage'?)" in message
    assert "zero_optimization.inner.dept: unknown key (did you mean 'depth'?)" in message


def test_all_problems_are_shown_at_once(plugins: PluginManager) -> None:
    message = refused(
        {"gradient_clipp1ng": 1, "fp16": {"enabled": "yes", "loss_scal": 1}, "pipeline": {"stages": 2}}, plugins
    )
    assert "4 problems" in message
    for part in ("gradient_clipp1ng", "fp16.enabled", "fp16.loss_scal:", "section 'pipeline'"):
        assert part in message


def test_unknown_key_with_no_neighbour_lists_the_known_ones(plugins: PluginManager) -> None:
    message = refused({"fp16": {"zzz": 1}}, plugins)
    assert "fp16.zzz: unknown key\n" in message
    assert "initial_scale_power" in message


def test_key_of_a_section_at_the_top_is_sent_where_it_belongs(plugins: PluginManager) -> None:
    assert "it belongs into 'zero_optimization'" in refused({"stage": 2}, plugins)


def test_misspelt_section_of_a_missing_plugin_is_recognised(plugins: PluginManager) -> None:
    assert "did you mean 'pipeline'" in refused({"pipelin": {"stages": 2}}, plugins)


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_section_of_a_missing_plugin_names_its_distribution(section: str) -> None:
    message = refused({section: {"anything": 1}}, manager())
    assert f"section {section!r} needs {SECTIONS[section]}: pip install {SECTIONS[section]}" in message


@pytest.mark.parametrize("key", sorted(GONE))
def test_key_that_is_gone_is_explained(key: str) -> None:
    message = refused({key: {"enabled": True}}, manager())
    assert GONE[key].why in message
    assert GONE[key].instead in message


@pytest.mark.parametrize("nothing", [False, None, {}, {"enabled": False, "other": 3}])
@pytest.mark.parametrize("key", ["flops_profiler", "amp", "elasticity"])
def test_section_that_asks_for_nothing_is_let_pass(key: str, nothing: object) -> None:
    assert load_config({key: nothing, "seed": 7}, plugins=manager()).seed == 7


def test_section_of_a_broken_plugin_tells_the_cause() -> None:
    broken = Found("moe", "dsx-moe", "0.1.0", state="broken", cause="importing dsx_moe raised ImportError: no numpy")
    with pytest.warns(PluginWarning, match="dsx-moe 0.1.0"):
        plugins = PluginManager([broken])
    assert load_config({"seed": 1}, plugins=plugins).seed == 1
    assert "no numpy" in refused({"moe": {"experts": 4}}, plugins)


def test_unknown_key_beside_a_broken_stranger_mentions_it() -> None:
    broken = Found("acme", "acme-dsx", "2.0", state="broken", cause="importing acme raised ValueError: seven")
    with pytest.warns(PluginWarning):
        plugins = PluginManager([broken])
    assert "acme-dsx 2.0" in refused({"acme_section": {"a": 1}}, plugins)


def test_section_of_a_blocked_plugin_says_so() -> None:
    plugins = PluginManager([Found("zero", "dsx-zero", "0.1.0", state="blocked", cause="blocked by request")])
    assert "blocked" in refused({"zero_optimization": {"stage": 1}}, plugins)


def test_installed_distribution_that_does_not_know_the_section_is_not_recommended_again() -> None:
    zero = Found("zero", "dsx-zero", "0.1.0", plugin("zero", sections={"zero_optimization": Zero}))
    message = refused({"aio": {"block_size": 1}}, PluginManager([zero]))
    assert "dsx-zero 0.1.0" in message
    assert "--upgrade" in message


def test_one_section_under_two_spellings_is_refused(plugins: PluginManager) -> None:
    message = refused({"bf16": {"enabled": True}, "bfloat16": {"enabled": False}}, plugins)
    assert "bfloat16: found also as 'bf16'" in message
    assert "a problem" in message
