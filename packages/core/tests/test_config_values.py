"""Values: wrong types and ranges are refused in words, before anything starts, also under ``python -O``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fake_plugins import manager
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.config.auto import AUTO
from dsx.config.load import load_config
from dsx.config.root import DsxConfig
from dsx.errors import ConfigError


def load(source: object) -> DsxConfig:
    return load_config(source, plugins=manager())  # type: ignore[arg-type]


def refused(source: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source)
    return str(caught.value)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), -1, -0.5, float("-inf")])
def test_loss_scale_out_of_range_is_refused(scale: float) -> None:
    """B03: the message names the field and its legal range."""
    message = refused({"fp16": {"enabled": True, "loss_scale": scale}})
    assert "fp16.loss_scale: found" in message
    assert "0 (dynamic) or a finite number > 0" in message


@settings(deadline=None)  # a loaded machine is no failure
@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_every_finite_scale_from_zero_is_taken(scale: float) -> None:
    assert load({"fp16": {"loss_scale": scale}}).fp16.loss_scale == scale


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"train_batch_size": "8"}, 'train_batch_size: found the text "8", wanted a whole number > 0'),
        ({"train_batch_size": True}, "train_batch_size: found true, wanted a whole number > 0"),
        ({"train_batch_size": 0}, "train_batch_size: found 0, wanted a whole number > 0"),
        ({"train_batch_size": 8.5}, "train_batch_size: found 8.5, wanted a whole number > 0"),
        ({"train_batch_size": [8]}, "train_batch_size: found a list of 1, wanted a whole number > 0"),
        ({"fp16": {"enabled": "yes"}}, 'fp16.enabled: found the text "yes", wanted true or false or "auto"'),
        ({"fp16": 3}, "fp16: found 3, wanted an object"),
        ({"gradient_clipping": float("inf")}, "gradient_clipping: found inf, wanted a finite number ≥ 0"),
        ({"gradient_clipping": -1}, "gradient_clipping: found -1, wanted a finite number ≥ 0"),
        ({"communication_data_type": "int8"}, 'wanted "fp32", "bf16", "fp16" or null'),
        ({"steps_per_print": 0}, "wanted a whole number > 0, or inf for never"),
        ({"steps_per_print": 1.5}, "wanted a whole number > 0, or inf for never"),
        ({"fp16": {"initial_scale_power": 200}}, "wanted a whole number from 0 to 126"),
        ({"optimizer": {"params": {}}}, "optimizer.type: not given, wanted text"),
        ({"bfloat16": {"enabled": 3.5}}, "bfloat16.enabled: found 3.5"),
        ({"data_types": {"keep_in_fp32_modules": ["a", 3]}}, "data_types.keep_in_fp32_modules[1]: found 3"),
        ({"gradient_allreduce_op": "max"}, 'gradient_allreduce_op: found the text "max"'),
        ({"comm_timeout": 0}, "comm_timeout: found 0, wanted a finite number > 0"),
    ],
)
def test_message_says_found_wanted_and_what_to_do(source: dict[str, object], words: str) -> None:
    message = refused(source)
    assert words in message
    assert "what to do:" in message
    assert "a problem:" in message


def test_both_precisions_are_refused() -> None:
    message = refused({"fp16": {"enabled": True}, "bf16": {"enabled": True}})
    assert "fp16.enabled and bf16.enabled: found both true" in message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"bf16": {"bf16_optimizer_states": True}}, "bf16_master_weights_and_grads"),
        ({"activation_checkpointing": {"contiguous_memory_optimization": True}}, "number_checkpoints"),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}}, "set the top-level key gradient_clipping"),
    ],
)
def test_keys_that_need_each_other(source: dict[str, object], words: str) -> None:
    assert words in refused(source)


def test_defaults_are_the_documented_ones_and_clip_nothing() -> None:
    config = load({})
    assert config.gradient_clipping == 0.0
    assert config.steps_per_print is None
    assert (config.fp16.initial_scale_power, config.fp16.loss_scale_window, config.fp16.hysteresis) == (16, 1000, 2)
    assert (config.fp16.min_loss_scale, config.fp16.loss_scale) == (1, 0)
    assert config.zero_allow_untested_optimizer is False
    assert config.optimizer is None


def test_a_file_as_trainers_write_it_is_read_unchanged() -> None:
    """What accelerate and transformers leave in a configuration: inf, disabled sections, auto, accepted extras."""
    config = load(
        {
            "train_micro_batch_size_per_gpu": "auto",
            "steps_per_print": float("inf"),
            "fp16": {"enabled": False, "loss_scale": 0, "auto_cast": False},
            "bfloat16": {"enabled": "auto"},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
            "flops_profiler": {"enabled": False, "profile_step": 1},
            "tensorboard": None,
            "checkpoint": {"tag_validation": "fail", "load_universal": True},
            "wall_clock_breakdown": False,
        }
    )
    assert config.steps_per_print == float("inf")
    assert config.bf16.enabled is AUTO
    assert config.train_micro_batch_size_per_gpu is AUTO
    assert config.gradient_clipping is AUTO
    assert config.optimizer is not None
    assert config.optimizer.params["lr"] is AUTO
    assert config.checkpoint.tag_validation == "Fail"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("bfloat16", "bf16"), ("half", "fp16"), ("float32", "fp32"), ("BF16", "bf16"), ("fp16", "fp16")],
)
def test_number_formats_by_either_name(written: str, meant: str) -> None:
    assert load({"communication_data_type": written}).communication_data_type == meant


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert load({"train_batch_size": 4e2}).train_batch_size == 400


def test_a_configuration_is_frozen() -> None:
    config = load({})
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_refusals_do_not_depend_on_asserts() -> None:
    code = (
        "from dsx.config.load import load_config\n"
        "from dsx.plugin.manager import PluginManager\n"
        "from dsx.errors import ConfigError\n"
        "try:\n"
        "    load_config({'fp16': {'enabled': True, 'loss_scale': -1}}, plugins=PluginManager([]))\n"
        "except ConfigError as error:\n"
        "    print('refused:', 'fp16.loss_scale' in str(error))\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "refused: True"
