"""What is known of each plugin that was found: a row of ``dsx plugins``."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsx.plugin.discovery import Found


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One row of ``dsx plugins``. State: active, blocked, broken or clash, each of the latter with its cause."""

    name: str
    distribution: str
    version: str
    state: str
    provides: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""
    """What to do about the cause."""
    seconds: float = field(default=0.0, compare=False)
    """How long its import took."""
    module: str = ""
    """The module that was imported for it; nothing for an object that the caller gave."""

    @property
    def provider(self) -> str:
        """``'zero' (dsx-zero 0.1.0)``."""
        return f"{self.name!r} ({' '.join(part for part in (self.distribution, self.version) if part)})"

    @property
    def trouble(self) -> str:
        """Cause and remedy in a line, for tables and lists; nothing where all is well."""
        return "; what to do: ".join(part for part in (self.cause, self.remedy) if part)


def info_of(
    found: Found, state: str, cause: str, remedy: str, *, name: str = "", provides: tuple[str, ...] = ()
) -> PluginInfo:
    """A row of what was found, in this state."""
    return PluginInfo(
        name or found.name,
        found.distribution,
        found.version,
        state,
        provides,
        cause,
        remedy,
        found.seconds,
        found.module,
    )
