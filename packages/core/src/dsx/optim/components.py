"""What building an optimizer or a schedule asks of configuration and registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from dsx.plugin.types import Kind


class Named(Protocol):
    """A section that chooses a component by name: ``config.optimizer``, ``config.scheduler``."""

    @property
    def type(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


class Components(Protocol):
    """Components and kernels by name: ``dsx.registry.registry.Registry``."""

    def get(self, kind: Kind[Any], name: str) -> Any: ...
    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]: ...
