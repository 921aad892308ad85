"""Metrics to TensorBoard, Weights & Biases and Comet. Each imports its library when it is made, and only then."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from dsx.monitor.files import run_folder
from dsx.monitor.libraries import need


class TensorBoardMonitor:
    """TensorBoard event files."""

    def __init__(self, *, output_path: str = "", job_name: str = "DeepSpeedJobName") -> None:
        need("tensorboard", monitor="tensorboard", install="tensorboard")
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = writer(log_dir=str(run_folder(output_path, job_name)))

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Add a scalar for each metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbMonitor:
    """One Weights & Biases run."""

    def __init__(self, *, group: str | None = None, team: str | None = None, project: str = "deepspeed") -> None:
        need("wandb", monitor="wandb", install="wandb")
        self._run: Any = importlib.import_module("wandb").init(project=project, group=group, entity=team)

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log all metrics under one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class CometMonitor:
    """One Comet experiment. ``samples_log_interval``: the least difference of steps between two writes."""

    def __init__(
        self,
        *,
        samples_log_interval: int = 100,
        project: str | None = None,
        workspace: str | None = None,
        api_key: str | None = None,
        experiment_name: str | None = None,
        experiment_key: str | None = None,
        online: bool | None = None,
        mode: str | None = None,
    ) -> None:
        need("comet_ml", monitor="comet", install="comet-ml")
        self._interval = samples_log_interval
        self._last: int | None = None
        self._experiment: Any = importlib.import_module("comet_ml").start(
            api_key=api_key,
            workspace=workspace,
            project=project,
            experiment_key=experiment_key,
            mode=mode,
            online=online,
        )
        if experiment_name is not None:
            self._experiment.set_name(experiment_name)

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log all metrics, unless the last time was too short ago."""
        if self._last is None or step - self._last >= self._interval:
            self._experiment.log_metrics(dict(values), step=step)
            self._last = step

    def close(self) -> None:
        """End the experiment."""
        self._experiment.end()
