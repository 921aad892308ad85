"""What every message about a plugin that fails must say."""

from __future__ import annotations


def complete(message: str, *, name: str, distribution: str = "", version: str = "1.0") -> bool:
    """Whether a message says all that it must, once each."""
    provider = f"{name!r} ({distribution or f'acme-{name}'} {version})"
    assert provider in message
    assert message.count("what to do: ") == 1, message
    assert message.partition("what to do: ")[2].strip()
    return True
