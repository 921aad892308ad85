"""Losses and gradient norms of a dsx training, as JSON lines or as records of a logger."""
