"""What an engine says when it is built: the precision line, the plan, and notes on keys without effect."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from observe_helpers import engine_of

from dsx.observe.tell import tell

Capture = pytest.CaptureFixture[str]


def said(capsys: Capture) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_precision_line_says_in_what_gradients_accumulate(capsys: Capture) -> None:
    """B14: gradients accumulate in fp32 by default, and the line at start says so."""
    with engine_of(bf16={"enabled": True}) as engine:
        described = engine.plan.precision.describe()
    assert said(capsys) == [f"dsx {described}"]
    assert "parameters bf16" in described
    assert "gradients accumulate in fp32" in described


def test_dump_state_prints_the_plan_and_the_line_once(capsys: Capture) -> None:
    with engine_of(dump_state=True) as engine:
        plan = engine.plan.describe()
    assert said(capsys) == plan.splitlines()
    assert engine.plan.precision.describe() in plan.splitlines()


@pytest.mark.parametrize(("level", "printed"), [("debug", 1), ("info", 1), ("warning", 0), ("error", 0)])
def test_log_level_holds_while_the_engine_lives(
    capsys: Capture, caplog: pytest.LogCaptureFixture, level: str, printed: int
) -> None:
    logger = logging.getLogger("dsx")
    before = logger.level
    with engine_of(log_level=level) as engine:
        assert logger.level == getattr(logging, level.upper())
        assert logger.isEnabledFor(logging.DEBUG) is (level == "debug")
        line = f"dsx {engine.plan.precision.describe()}"
    assert logger.level == before
    # Through logging where that shows it, never twice.
    assert [*said(capsys), *caplog.messages].count(line) == printed


def test_a_program_may_silence_the_logger_itself(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="dsx")
    with engine_of():
        pass
    assert said(capsys) == []


def test_what_is_told_goes_through_logging_where_that_shows_it(
    capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    tell("one")
    caplog.set_level(logging.INFO, logger="dsx")
    tell("two")
    assert said(capsys) == ["one"]
    assert caplog.messages == ["two"]


def test_keys_without_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with engine_of(activation_checkpointing={"partition_activations": True}):
        pass
    (message,) = caplog.messages
    assert "activation_checkpointing.partition_activations has no effect" in message


def test_import_is_silent_and_start_is_one_line() -> None:
    program = """
import dsx, torch
model = torch.nn.Linear(2, 2)
print("imported", flush=True)
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
with dsx.initialize(model=model, config=config)[0] as engine:
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "imported\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsx precision: parameters fp32, ")
