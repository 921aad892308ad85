"""Where checkpoints can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import STORE
from dsx.plugin.types import Component


def components() -> Iterator[Component[Any]]:
    """Named as in ``checkpoint.store``; built with the root path."""
    yield Component(
        STORE, "directory", load="dsx.checkpoint.stores:DirectoryStore", summary="a folder that all ranks see"
    )
