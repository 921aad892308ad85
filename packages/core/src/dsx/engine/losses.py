"""The loss of the last update, kept without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor


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
