"""Large PyTorch models, trained by a small core and separately installable plugins. Importing this does nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsx.api import construct, init_distributed, initialize
    from dsx.engine.engine import Engine
    from dsx.planning.make import make_plan

__version__ = "0.1.0"

__all__ = ["Engine", "__version__", "construct", "init_distributed", "initialize", "make_plan"]

_WHERE = {
    "construct": "dsx.api",
    "init_distributed": "dsx.api",
    "initialize": "dsx.api",
    "Engine": "dsx.engine.engine",
    "make_plan": "dsx.planning.make",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'dsx' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
