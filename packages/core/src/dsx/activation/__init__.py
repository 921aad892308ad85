"""Activation checkpointing: less memory for one more forward."""

from __future__ import annotations

from dsx.activation.modules import activation_pass, apply, remove
from dsx.activation.recompute import checkpoint
from dsx.activation.settings import ActivationSettings, settings_from

__all__ = ["ActivationSettings", "activation_pass", "apply", "checkpoint", "remove", "settings_from"]
