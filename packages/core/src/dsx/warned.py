"""Warnings that point at the line outside of dsx that led to them, however many calls of dsx lie between."""

from __future__ import annotations

import sys
import warnings


def warn_outside(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line that is not dsx's own: the line of the user's that can be changed."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)


def _is_ours(module: str) -> bool:
    return module in ("dsx", "contextlib") or module.startswith("dsx.")
