"""What an engine says when it is built: its precision, or its whole plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dsx.activation.settings import unheeded
from dsx.observe.tell import LOGGER, tell

if TYPE_CHECKING:
    from dsx.engine.engine import Engine


def announce(engine: Engine) -> None:
    """Set the level of the logger as the configuration says; on rank 0 print the precision line, or the plan."""
    logger = logging.getLogger(LOGGER)
    config = engine.config
    if config.log_level is not None:
        engine.cleanups.callback(logger.setLevel, logger.level)
        logger.setLevel(config.log_level.upper())
    if engine.plan.world.rank != 0:
        return
    if config.dump_state:
        tell(engine.plan.describe())
    elif logger.level <= logging.INFO:
        tell(f"dsx {engine.plan.precision.describe()}")
    for note in unheeded(config.activation_checkpointing):
        logger.warning(note)
