"""Kinds of device: the best that this machine has, or the one named."""
