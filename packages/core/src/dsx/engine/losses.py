"""The losses of an update: checked before backward, and the last one kept without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from dsx.errors import EngineError


def check_loss(loss: Tensor, gradient: Tensor | None) -> None:
    """Refuse what backward cannot begin from."""
    if not isinstance(loss, Tensor):
        raise EngineError(f"backward() got a {type(loss).__name__}, wanted the loss as a tensor")
    if not loss.requires_grad:
        raise EngineError(
            "the loss requires no gradient: it was computed under torch.no_grad(), detached, or depends on no "
            "trainable parameter. Compute it from what the engine's forward gives"
        )
    if gradient is None and loss.numel() != 1:
        raise EngineError(
            f"backward() got a tensor of shape {tuple(loss.shape)}, wanted a scalar loss: reduce it with mean() or "
            "sum(), or pass gradient= of that shape"
        )


class RunningLoss:
    """Sums the losses of an update where they are. Each is copied: compiled models use their outputs' memory again."""

    def __init__(self, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._sum: Tensor | None = None
        self._ended: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        """A loss whose backward was run; anything but a scalar is left out."""
        if loss.numel() != 1:
            return
        value = loss.detach().reshape(())
        if self._sum is None:
            self._sum = value.to(torch.float32, copy=True)
        else:
            self._sum += value

    def end_update(self) -> None:
        """What came since the last update is that of the one that ends now."""
        self._ended, self._sum = self._sum, None

    def drop(self) -> None:
        """Forget the losses of an update that will not be made."""
        self._sum = None

    @property
    def last(self) -> Tensor | None:
        """The mean over micro-batches, as the gradient was; ``None`` where the update saw no loss."""
        return None if self._ended is None else self._ended / self._micro_batches
