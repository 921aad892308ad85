"""Checks a plugin as its users will meet it: contract, numerics, failures, import cost and leaks, in a report."""

from __future__ import annotations

from dsx.authoring.check.findings import Finding, Report, Verdict
from dsx.authoring.check.run import check_plugin

__all__ = ["Finding", "Report", "Verdict", "check_plugin"]
