"""Reads tables for a long time, at import."""

from __future__ import annotations

import time

time.sleep(0.25)
