"""One training, one checkpoint, one command line: a plugin that implements every hook is asked each of them."""

from __future__ import annotations

import pytest
import recording_plugin
import torch
from recording_plugin import ASKED, Counting
from typer.testing import CliRunner

import dsx
from dsx.cli.main import build_app
from dsx.plugin import hooks
from dsx.plugin.manager import plugin_manager

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "recorded_sgd", "params": {"lr": 0.1}},
    "recorded": {"width": 3},
}
PLUGINS = [recording_plugin]


def counted(engine: dsx.Engine) -> int:
    return next(observer.updates for observer in engine.observers if isinstance(observer, Counting))


@pytest.fixture(scope="module")
def lived(tmp_path_factory) -> list[str]:
    """What the plugin was asked over a whole life; what each answer led to is asserted on the way."""
    ASKED.clear()
    folder = tmp_path_factory.mktemp("checkpoints")
    with dsx.construct(CONFIG, plugins=PLUGINS):
        model = torch.nn.Linear(3, 2)
    engine, *_ = dsx.initialize(model=model, config=CONFIG, plugins=PLUGINS)
    with engine:
        before = engine.full_state_dict()
        for _ in range(3):
            engine.backward(engine(torch.ones(2, 3)).sum())
            engine.step()
        # d sum / d bias = 2 rows × 1, three updates of the plugin's optimizer at 0.1
        assert torch.allclose(before["bias"] - engine.full_state_dict()["bias"], torch.full((2,), 0.6))
        assert counted(engine) == 3
        engine.save_checkpoint(folder, tag="three")
        engine.backward(engine(torch.ones(2, 3)).sum())
        engine.step()
        assert counted(engine) == 4
        engine.load_checkpoint(folder, tag="three")
        assert counted(engine) == 3
    manager = plugin_manager(extra=PLUGINS)
    told = CliRunner().invoke(build_app(manager), ["recorded", "--text", "hello"])
    assert "the plugin says hello" in told.output
    assert [row.value.value for row in manager.report() if row.plugin == "recorded"] == ["many"]
    return list(ASKED)


@pytest.mark.parametrize("hook", sorted(name for name in vars(hooks) if name.startswith("dsx_")))
def test_it_was_asked(lived: list[str], hook: str) -> None:
    assert hook in lived


def test_nothing_is_asked_within_a_step() -> None:
    engine, *_ = dsx.initialize(model=torch.nn.Linear(3, 2), config=CONFIG, plugins=PLUGINS)
    with engine:
        ASKED.clear()
        engine.backward(engine(torch.ones(2, 3)).sum())
        engine.step()
        assert ASKED == []
