"""Sections that say what is measured and where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from dsx.config.section import Section


class MonitorSection(Section):
    """One of ``monitors``: a registered monitor by name, the core's or a plugin's. Own to dsx."""

    type: str = Field(min_length=1)
    """Name of the monitor, in any case: csv, jsonl, tensorboard, wandb, comet, prometheus, or a plugin's."""
    params: Mapping[str, Any] = Field(default_factory=dict)
    """Its keyword arguments."""


class FileMonitorSection(Section):
    """``tensorboard``, ``csv_monitor`` and ``jsonl_monitor``: metrics in files."""

    enabled: bool = False
    """Write metrics here."""
    output_path: str = ""
    """Folder of the files. Empty: ``runs/`` below the working directory."""
    job_name: str = "DeepSpeedJobName"
    """Name of this run below output_path."""


class PrometheusSection(Section):
    """``prometheus``: metrics served over HTTP for a Prometheus server to collect. Own to dsx."""

    enabled: bool = False
    """Serve metrics."""
    port: int = Field(default=9464, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    address: str = "127.0.0.1"
    """Address to listen on."""


class WandbSection(Section):
    """``wandb``: metrics to Weights & Biases."""

    enabled: bool = False
    """Write metrics here."""
    group: str | None = None
    """Group of runs."""
    team: str | None = None
    """Team (entity) that owns the run."""
    project: str = "deepspeed"
    """Project of the run."""


class CometSection(Section):
    """``comet``: metrics to Comet."""

    enabled: bool = False
    """Write metrics here."""
    samples_log_interval: int = Field(default=100, gt=0)
    """Samples between two writes."""
    project: str | None = None
    """Project of the experiment."""
    workspace: str | None = None
    """Workspace of the experiment."""
    api_key: str | None = Field(default=None, repr=False)
    """Key of the account; better left to Comet's own configuration file."""
    experiment_name: str | None = None
    """Name of the experiment."""
    experiment_key: str | None = None
    """Key of an experiment to continue."""
    online: bool | None = None
    """Send at once (true) or write files to upload later (false)."""
    mode: Literal["get", "create", "get_or_create"] | None = None
    """Whether to continue an experiment or begin one."""


class CommsLoggerSection(Section):
    """``comms_logger``: rank 0 prints what it moved, with steps_per_print and at the end. Counting is always on."""

    enabled: bool = False
    """Print the account of collectives."""
    verbose: bool = False
    """Print each collective as it ends."""
    prof_all: bool = True
    """Show every operation; false: only those in prof_ops."""
    debug: bool = False
    """Count by call site as well."""
    prof_ops: tuple[str, ...] = ()
    """Operations to show when prof_all is false; torch's names of them are read too."""


class ThroughputTimerSection(Section):
    """``timers.throughput``."""

    enabled: bool = True
    """Measure samples per second."""
    synchronized: bool = True
    """Wait for the device before reading the clock."""


class TimersSection(Section):
    """``timers``: which clocks run."""

    throughput: ThroughputTimerSection = ThroughputTimerSection()
    """Samples per second, printed every steps_per_print updates."""
