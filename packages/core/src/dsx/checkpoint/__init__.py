"""Checkpoints: named tensors with global shapes, written once, loaded under any number of ranks.

``save.save`` and ``load.load`` are what an engine calls; a user reads weights with ``consolidate.read_full`` and
``consolidate.export``. torch.distributed.checkpoint takes a second to import, so only those modules import it.
"""

from __future__ import annotations

from dsx.checkpoint.boxes import Alias, Boxes

__all__ = ["Alias", "Boxes"]
