"""What goes wrong in a user's hands: one class a subject, each message says found, wanted and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DataError",
    "DsxError",
    "EngineError",
    "KernelError",
    "LaunchError",
    "PlanError",
    "PluginError",
    "PrecisionError",
    "did_you_mean",
]


class DsxError(Exception):
    """A mistake that the user can mend. Never raised for our own mistakes: those are asserts."""


class ConfigError(DsxError):
    """A configuration that cannot be read: unknown key, wrong type, value out of range."""


class PlanError(DsxError):
    """A readable configuration that cannot run here: clashing claims, batch sizes, mesh degrees."""


class PluginError(DsxError):
    """A plugin that is missing, broken, of another API version, or at odds with a second one."""


class KernelError(DsxError):
    """A kernel that is not available, or was called with tensors it does not take."""


class CheckpointError(DsxError):
    """A checkpoint that is absent, torn, or of another model."""


class CommError(DsxError):
    """A collective that failed or passed its deadline; names the ranks that are behind."""


class PrecisionError(DsxError):
    """Numbers that left their range for good: names the first bad parameter and its module."""


class DataError(DsxError):
    """Training data that the loader cannot deal out."""


class EngineError(DsxError):
    """A call that the engine does not allow in its present state."""


class LaunchError(DsxError):
    """Ranks that could not be started, or died."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the nearest known name, or nothing where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
