"""A monitor that hands metrics to Python's logging."""

from __future__ import annotations

import logging
from collections.abc import Mapping


class LoggingMonitor:
    """One record of the logger ``acme_metrics`` for each step."""

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log them."""
        logging.getLogger("acme_metrics").info("step %d: %s", step, dict(values))

    def close(self) -> None:
        """Nothing is held."""
