"""``dsx report``: this machine, its devices, the kernels that run here and why others do not, and what plugins say."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import torch

from dsx import __version__
from dsx.accelerator.base import choose, scores
from dsx.cli.choice_of_plugins import Plugins
from dsx.cli.main import CORE_COMMANDS
from dsx.cli.out import table
from dsx.errors import KernelError
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.registry.registry import Registry


def report(plugin: Plugins = None) -> None:
    """Describe this machine, its devices, kernels and plugins."""
    plugins = plugin_manager(clashes="show")
    registry = Registry(plugins)
    table("machine", ("what", "value"), _machine())
    table("accelerators", ("name", "score", "why"), _accelerators(registry))
    table("kernels", ("operation", "variant", "state", "why"), _kernels(registry))
    table("plugins", ("topic", "name", "value", "note"), _plugin_rows(plugins))


def _machine() -> Iterator[tuple[str, str]]:
    yield "dsx", __version__
    yield "python", platform.python_version()
    yield "system", platform.platform()
    yield "processor", f"{platform.machine()}, {os.cpu_count()} cores, {_instructions()}"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"
    backends = [name for name in ("gloo", "nccl", "mpi", "ucc") if _has_backend(name)]
    yield "torch.distributed", ", ".join(backends) or "not built into this torch"


def _instructions() -> str:
    return f"instructions up to {torch.backends.cpu.get_cpu_capability()}"


def _has_backend(name: str) -> bool:
    if not torch.distributed.is_available():
        return False
    return torch.distributed.is_backend_available(name)


def _accelerators(registry: Registry) -> Iterator[tuple[str, str, str]]:
    scored = scores(registry)
    chosen = choose(registry=registry).name if scored else ""
    for name, score in scored.items():
        yield name, f"{score.value}, used" if name == chosen else str(score.value), score.why


def _kernels(registry: Registry) -> Iterator[tuple[str, str, str, str]]:
    for operation in registry.kernels.operations:
        chosen = _chosen(registry, operation)
        for variant, score in registry.scores(operation):
            state = "used" if variant == chosen else "can run" if score.value > 0 else "cannot run"
            yield operation, variant, f"{state} (score {score.value})", score.why


def _chosen(registry: Registry, operation: str) -> str:
    try:
        return registry.kernels.chosen(operation)
    except KernelError:
        return ""


def _plugin_rows(plugins: PluginManager) -> Iterator[tuple[str, str, str, str]]:
    for info in plugins.info(commands=[command.name for command in CORE_COMMANDS]):
        yield "plugin", info.name, f"{info.state}, {info.distribution} {info.version}".rstrip(), info.trouble
    for item in plugins.report():
        row = item.value
        yield row.topic, row.name, row.value if row.good else f"[!] {row.value}", row.note
