"""Adam for embeddings, as a plugin of dsx: an update leaves alone what has no gradient."""

from __future__ import annotations

NAME = "acme_sparse_adam"
"""Of the plugin, of its optimizer in a configuration, and of its section."""

OPERATION = "acme_sparse_adam_step"
"""Of its kernel: what `DSX_KERNELS` and `dsx report` call it."""
