"""The settings that hold while an engine runs its model's forward: what ``checkpoint`` uses where none are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dsx.activation.settings import ActivationSettings, settings_from

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig

_CURRENT: ContextVar[ActivationSettings | None] = ContextVar("dsx_activation_settings", default=None)


def current() -> ActivationSettings | None:
    """The settings of the engine whose forward this is; ``None`` outside, and where the user gave no section."""
    return _CURRENT.get()


def settings_given(config: DsxConfig) -> ActivationSettings | None:
    """What the section ``activation_checkpointing`` asks for; ``None`` where it is absent."""
    return settings_from(config.activation_checkpointing) if config.has("activation_checkpointing") else None


def recomputing(settings: ActivationSettings | None) -> AbstractContextManager[None]:
    """A context in which these are the current settings."""
    return nullcontext() if settings is None else _holding(settings)


@contextmanager
def _holding(settings: ActivationSettings) -> Iterator[None]:
    token = _CURRENT.set(settings)
    try:
        yield
    finally:
        _CURRENT.reset(token)
