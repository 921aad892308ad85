"""How a line reaches the user: through the program's logging where that shows it, else on stderr."""

from __future__ import annotations

import logging
import sys

from dsx.config.root import DsxConfig

LOGGER = "dsx"


def tell(text: str) -> None:
    """Show a line, or several, that the user asked for or must see once. Progress bars of rich stay whole."""
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(text)
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def interval(config: DsxConfig, *, otherwise: int | None = None) -> int | None:
    """Updates between two printed lines; ``otherwise`` where the user names none; ``None`` is never."""
    steps = config.steps_per_print
    if steps is None:
        return otherwise
    return None if steps == float("inf") else int(steps)


def is_due(step: int, every: int | None) -> bool:
    """Whether the update with this number, counted from 1, is one to print."""
    return every is not None and step % every == 0
