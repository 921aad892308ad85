"""Data for data-parallel ranks: dealt out evenly, resumed exactly."""

from __future__ import annotations

from dsx.data.loader import Loader, RepeatingLoader

__all__ = ["Loader", "RepeatingLoader"]
