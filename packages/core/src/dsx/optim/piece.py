"""What an optimizer sees of a model: pieces, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

Ownership = Literal["element", "parameter"]
"""Whether an optimizer can update any range of a parameter by itself, or needs whole parameters."""


@dataclass(slots=True)
class Piece:
    """The part of one parameter that this rank updates.

    Under ownership by element it is a flat range of the parameter; under ownership by parameter it has the
    parameter's own shape. Pieces of one bucket follow each other in memory, so neighbours may be updated as one run.
    """

    name: str
    master: nn.Parameter
    """The weights to update, in the master dtype. What the optimizer keeps in its ``param_groups``."""
    grad: Tensor | None
    """The reduced gradient, shaped like ``master``, possibly in a narrower dtype; ``None``: no rank touched it."""
    publish: Tensor | None
    """Where the updated weights go in the parameter dtype; ``None`` where ``master`` is what the model reads."""
