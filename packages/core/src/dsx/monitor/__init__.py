"""Metrics: CSV, JSON lines, TensorBoard, Weights & Biases, Comet, Prometheus."""

from __future__ import annotations

from dsx.monitor.all import MonitorSet, monitors_from

__all__ = ["MonitorSet", "monitors_from"]
