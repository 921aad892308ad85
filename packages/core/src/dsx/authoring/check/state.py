"""What a process is like, as far as a plugin might change it: threads, variables, handlers, settings, files."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsx.testing.leaks import Traces

REMEDIES: Mapping[str, str] = {
    "threads": "end it in close() or dsx_teardown; start none at import",
    "child processes": "end it in close() or dsx_teardown; start none at import",
    "process groups": "close in dsx_teardown the groups that were made; the engine's mesh has groups to use",
    "environment": "set the variable back, or pass the value otherwise: it is the whole program's",
    "signal handlers": "leave the handlers of the user's program alone, or set them back",
    "warning filters": "use warnings.catch_warnings() around the call that warns",
    "import paths": "leave sys.path and sys.meta_path alone",
    "root logger": 'log to logging.getLogger("your package") and leave handlers to the program',
    "open files": "close what was opened, in close() or dsx_teardown",
    "files": "write only where the configuration names a folder",
    "torch settings": "leave torch's settings to the user, or set them back",
    "random numbers": "draw from a torch.Generator of your own",
    "process settings": "leave hooks of sys and the current folder alone",
}
"""Each subject of comparison, with what to do about a difference."""


WORDS = (("thread", "threads"), ("process ", "child processes"), ("environment", "environment"))
"""How lines of the test kit's traces begin, with the subject that each tells of."""


@dataclass(frozen=True, slots=True)
class State:
    """The process as it was at one moment."""

    traces: Traces
    facts: Mapping[str, Mapping[str, Any]]
    """Subject -> name -> value, as text or as a plain value that can be compared."""

    @classmethod
    def now(cls) -> State:
        """Look."""
        facts = {
            "child processes": dict(_children()),
            "signal handlers": dict(_signals()),
            "warning filters": dict(_filters()),
            "import paths": dict(_paths()),
            "root logger": _root_logger(),
            "open files": dict(_open_files()),
            "files": {str(path): path.stat().st_size for path in Path().rglob("*") if path.is_file()},
            "torch settings": _torch_settings(),
            "random numbers": _random(),
            "process settings": _process(),
        }
        return cls(Traces.now(), facts)

    def changes(self) -> dict[str, list[str]]:
        """For every subject what differs now, in words; threads are given a second to end."""
        found: dict[str, list[str]] = {subject: [] for subject in REMEDIES}
        for line in self.traces.left_behind():
            found[next((subject for word, subject in WORDS if line.startswith(word)), "process groups")].append(line)
        now = State.now().facts
        for subject, before in self.facts.items():
            found[subject] += _differences(before, now[subject])
        return found


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in before:
            yield f"new: {name} = {now[name]}"
        elif name not in now:
            yield f"gone: {name} = {before[name]}"
        elif before[name] != now[name]:
            yield f"{name} is {now[name]} (was {before[name]})"


def _signals() -> Iterator[tuple[str, str]]:
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        yield signal.Signals(number).name if number in set(signal.Signals) else str(number), _named(handler)


def _named(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None)
    return f"{thing.__module__}.{name}" if name is not None else repr(thing)


def _paths() -> Iterator[tuple[str, str]]:
    yield from ((f"sys.path {path!r}", "there") for path in sys.path)
    yield from ((f"sys.meta_path {_named(finder)}", "there") for finder in sys.meta_path)
    yield from ((f"sys.path_hooks {_named(hook)}", "there") for hook in sys.path_hooks)


def _children() -> Iterator[tuple[str, str]]:
    """Processes that this one has started and not waited for; nothing where the system does not list them."""
    for file in Path("/proc/self/task").glob("*/children"):
        yield from ((f"process {number}", "runs") for number in file.read_text().split())


def _filters() -> Iterator[tuple[str, str]]:
    """Filters of Python's own warnings; a library's filter of a warning that it has defined itself harms nobody."""
    found: list[Any] = list(warnings.filters)
    for action, message, category, module, line in found:
        if category.__module__ == "builtins":
            patterns = [getattr(part, "pattern", part) for part in (message, module)]
            yield f"{action} {category.__name__}, message {patterns[0]!r}, module {patterns[1]!r}, line {line}", "there"


def _root_logger() -> dict[str, Any]:
    root = logging.getLogger()
    return {"handlers": [_named(handler) for handler in root.handlers], "level": root.level}


def _open_files() -> Iterator[tuple[str, str]]:
    """Descriptors and what they refer to; nothing where the system does not list them."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return
    for name in os.listdir(folder):
        try:
            target = os.readlink(folder / name)
        except OSError:  # the one that listed the folder
            continue
        yield f"descriptor {name}", target


def _torch_settings() -> dict[str, Any]:
    modules = torch.nn.modules.module
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "autocast": torch.is_autocast_enabled("cpu"),
        "hooks on all modules": sum(
            len(getattr(modules, name))
            for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
        ),
    }


def _random() -> dict[str, Any]:
    return {
        "torch's generator": hash(bytes(torch.get_rng_state().numpy().tobytes())),
        "random's generator": hash(random.getstate()),
    }


def _process() -> dict[str, Any]:
    return {
        "current folder": os.getcwd(),
        "sys.excepthook": _named(sys.excepthook),
        "sys.displayhook": _named(sys.displayhook),
        "sys.stdout": type(sys.stdout).__name__,
        "recursion limit": sys.getrecursionlimit(),
    }
