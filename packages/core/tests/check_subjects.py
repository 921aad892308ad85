"""Plugins made on the spot, as the steps of `dsx plugin check` take them, and what the steps say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fake_plugins import plugin

from dsx.authoring.check.findings import Finding
from dsx.authoring.check.journal import Journal
from dsx.authoring.check.process import Job
from dsx.authoring.check.subject import Subject, make_subject
from dsx.authoring.check.target import Target
from dsx.plugin import Component, Kernel, Section
from dsx.testing import write_distribution

SPEC = """
from dsx.plugin import PluginSpec, hookimpl

@hookimpl
def dsx_plugin():
    return PluginSpec(name="{name}", api=1, summary="made for a test")
"""


def subject(
    module: Any = None,
    *,
    folder: Path,
    sections: Mapping[str, type[Section]] | None = None,
    offers: tuple[Component[Any] | Kernel, ...] = (),
    config: Mapping[str, Any] | None = None,
    **hooks: Callable[..., Any],
) -> Subject:
    """A plugin of this module, or of these hooks."""
    if offers:
        hooks["dsx_components"] = lambda: list(offers)
    if module is None:
        module = plugin("acme", sections=sections, **hooks)
    target = Target("acme", "fake_acme")
    return make_subject(target, module, others=(), journal=Journal(folder / "journal"), config=config)


def bad(findings: Iterator[Finding]) -> dict[str, str]:
    """Check -> what was found, of those that are not well."""
    return {finding.check: finding.found for finding in findings if finding.bad}


def on_disk(folder: Path, name: str, code: str) -> Job:
    """An installed distribution with one module, as a job with a short deadline."""
    module = name.replace("-", "_")
    write_distribution(
        folder,
        name,
        modules={f"{module}.py": SPEC.format(name=name) + code},
        entry_points={name: module},
        requires=("dsx-core",),
    )
    return Job(Target(name, module, name, "1.0"), deadline=2.0)
