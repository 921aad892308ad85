"""Metrics reach each monitor; a failing or missing one never stops a training."""

from __future__ import annotations

import csv
import json
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from observe_helpers import engine_of

from dsx.builtin.monitors import components
from dsx.config.root import DsxConfig
from dsx.errors import ConfigError, PluginError
from dsx.monitor import MonitorSet, monitors_from
from dsx.monitor.all import SECTIONS
from dsx.monitor.files import CsvMonitor, JsonLinesMonitor
from dsx.monitor.observer import MonitorObserver
from dsx.monitor.prometheus import PrometheusMonitor, metric_name, page
from dsx.monitor.services import CometMonitor, TensorBoardMonitor, WandbMonitor
from dsx.registry.loading import load_object


class FakeRegistry:
    """Gives the built-in monitors by name."""

    def get(self, kind: Any, name: str) -> Any:
        (found,) = [component for component in components() if component.name == name]
        return load_object(found.load, what=name, provider="core")


class Recorder:
    def __init__(self, fails: bool = False) -> None:
        self.fails, self.seen, self.closed = fails, [], False

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        if self.fails:
            raise OSError("disk full")
        self.seen.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


def test_csv_is_one_file_a_metric_and_is_continued(tmp_path: Path) -> None:
    for step in (1, 2):
        monitor = CsvMonitor(output_path=str(tmp_path), job_name="job")
        monitor.write({"Train/loss": 0.1 * step, "lr": float("inf")}, step=step)
        monitor.close()
    rows = list(csv.reader((tmp_path / "job" / "Train_loss.csv").read_text().splitlines()))
    assert rows == [["step", "Train/loss"], ["1", "0.1"], ["2", "0.2"]]
    assert (tmp_path / "job" / "lr.csv").read_text().splitlines()[1] == "1,inf"


def test_json_lines_are_strict_json(tmp_path: Path) -> None:
    monitor = JsonLinesMonitor(output_path=str(tmp_path), job_name="job")
    monitor.write({"loss": 0.5, "norm": float("nan")}, step=7)
    monitor.write({"loss": 0.25}, step=8)
    monitor.close()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in monitor.path.read_text().splitlines()]
    assert lines == [{"step": 7, "loss": 0.5, "norm": "nan"}, {"step": 8, "loss": 0.25}]


def test_prometheus_serves_the_latest_values() -> None:
    monitor = PrometheusMonitor(port=0)
    try:
        monitor.write({"Train/loss": 0.5}, step=3)
        monitor.write({"Train/lr": 1e-3}, step=4)
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        assert "# TYPE dsx_train_loss gauge\ndsx_train_loss 0.5\n" in text
        assert "dsx_train_lr 0.001\n" in text
        assert "dsx_step 4.0\n" in text
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/", timeout=5)
        missing.value.close()
        with pytest.raises(PluginError, match=r"cannot listen on 127.0.0.1:\d+ .*prometheus.port"):
            PrometheusMonitor(port=monitor.port)
    finally:
        monitor.close()
    PrometheusMonitor(port=monitor.port).close()  # the port is free again


def test_prometheus_text() -> None:
    assert metric_name("Train/Samples/lr (%)") == "dsx_train_samples_lr"
    assert "x NaN\n" in page({"x": float("nan")}, step=0)
    assert "x -Inf\n" in page({"x": float("-inf")}, step=0)


def test_a_failing_monitor_warns_once_and_is_off() -> None:
    good, bad = Recorder(), Recorder(fails=True)
    monitors = MonitorSet({"bad": bad, "good": good})
    with pytest.warns(RuntimeWarning, match="monitor 'bad' failed to write and is switched off: OSError: disk full"):
        monitors.write({"x": 1.0}, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitors.write({"x": 2.0}, step=2)
        monitors.close()
    assert good.seen == [(1, {"x": 1.0}), (2, {"x": 2.0})]
    assert good.closed
    assert not monitors


def test_only_enabled_ones_on_rank_0_are_made(tmp_path: Path) -> None:
    place = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    config = DsxConfig(csv_monitor=place, jsonl_monitor=place, prometheus={"enabled": True, "port": 0})
    assert not monitors_from(config, registry=FakeRegistry(), rank=1)
    assert not list(tmp_path.iterdir())
    monitors = monitors_from(config, registry=FakeRegistry(), rank=0)
    assert monitors.names == ("csv", "jsonl", "prometheus")
    monitors.write({"loss": 1.0}, step=1)
    monitors.close()
    assert sorted(file.name for file in (tmp_path / "job").iterdir()) == ["loss.csv", "metrics.jsonl"]
    assert monitors_from(DsxConfig(), registry=FakeRegistry(), rank=0).names == ()


def test_monitors_are_enabled_by_name_as_often_as_wanted(tmp_path: Path) -> None:
    named = [{"type": "csv", "params": {"output_path": str(tmp_path), "job_name": job}} for job in ("a", "b")]
    config = DsxConfig(monitors=named)
    assert not monitors_from(config, registry=FakeRegistry(), rank=1)
    monitors = monitors_from(config, registry=FakeRegistry(), rank=0)
    assert monitors.names == ("csv", "csv#2")
    monitors.write({"loss": 1.0}, step=1)
    monitors.close()
    assert [path.name for path in sorted(tmp_path.glob("*/loss.csv"))] == ["loss.csv"] * 2


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        ({"type": "cvs"}, PluginError, "unknown monitor 'cvs' .did you mean 'csv'"),
        ({"type": "csv", "params": {"job": "x"}}, ConfigError, r"monitors\[1\].params.job is not a parameter of csv"),
        ({"typ": "csv"}, ConfigError, r"monitors\[1\].typ: unknown key .did you mean 'type'"),
        ({"type": ""}, ConfigError, r"monitors\[1\].type: found the text"),
    ],
)
def test_a_monitor_that_cannot_be_is_refused_before_training(item: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        engine_of(monitors=[{"type": "jsonl"}, item]).__enter__()


def test_every_section_has_its_monitor_and_the_keys_it_takes() -> None:
    assert {component.name for component in components()} == set(SECTIONS.values())
    for section, name in SECTIONS.items():
        settings = getattr(DsxConfig(), section).model_dump()
        settings.pop("enabled")
        accepted = FakeRegistry().get(None, name).__init__.__kwdefaults__
        assert settings.keys() == accepted.keys()


@pytest.mark.parametrize(
    ("make", "library"), [(TensorBoardMonitor, "tensorboard"), (WandbMonitor, "wandb"), (CometMonitor, "comet_ml")]
)
def test_a_missing_library_is_named_when_the_monitor_is_asked_for(
    make: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=rf"needs the package '{library.replace('_', '-')}'.*pip install"):
        make()


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def test_wandb_gets_project_group_and_team(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: calls.append((values, step)), finish=lambda: calls.append("finish"))

    def init(**options: Any) -> Any:
        calls.append(options)
        return run

    fake_module(monkeypatch, "wandb", init=init)
    monitor = WandbMonitor(group="g", team="t", project="p")
    monitor.write({"loss": 1.0}, step=5)
    monitor.close()
    assert calls == [{"project": "p", "group": "g", "entity": "t"}, ({"loss": 1.0}, 5), "finish"]


def test_comet_writes_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    experiment = SimpleNamespace(
        log_metrics=lambda values, step: calls.append(step), set_name=calls.append, end=lambda: calls.append("end")
    )
    fake_module(monkeypatch, "comet_ml", start=lambda **options: experiment)
    monitor = CometMonitor(samples_log_interval=10, experiment_name="mine")
    for step in (1, 5, 11, 20, 21):
        monitor.write({"loss": 1.0}, step=step)
    monitor.close()
    assert calls == ["mine", 1, 11, 21, "end"]


def test_tensorboard_gets_scalars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            calls.append(log_dir)

        def add_scalar(self, *args: Any) -> None:
            calls.append(args)

        def flush(self) -> None:
            calls.append("flush")

        close = flush

    fake_module(monkeypatch, "tensorboard")
    fake_module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    monitor = TensorBoardMonitor(output_path=str(tmp_path), job_name="job")
    monitor.write({"loss": 1.0}, step=5)
    assert calls == [str(tmp_path / "job"), ("loss", 1.0, 5), "flush"]


def test_observer_writes_what_the_engine_knows() -> None:
    engine: Any = SimpleNamespace(
        global_steps=4,
        global_samples=32,
        skipped_steps=1,
        last_loss=2.5,
        loss_scale=512.0,
        scaler=SimpleNamespace(active=True),
        get_lr=lambda: [0.1, 0.2],
        get_global_grad_norm=lambda: 3.0,
    )
    recorder = Recorder()
    observer = MonitorObserver(MonitorSet({"r": recorder}))
    observer.before_step(engine)
    engine.get_lr = lambda: [0.05, 0.1]  # of the next update
    observer.after_step(engine, updated=True)
    observer.close(engine)
    metrics = {"updates": 4.0, "skipped": 1.0, "train_loss": 2.5, "lr": 0.1, "grad_norm": 3.0, "loss_scale": 512.0}
    assert recorder.seen == [(32, {f"Train/Samples/{name}": value for name, value in metrics.items()})]
    assert recorder.closed
