"""Optimizers as thin classes over kernels, and learning-rate schedules as pure functions of the update index."""
