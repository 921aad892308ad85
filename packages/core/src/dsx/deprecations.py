"""Every deprecation of dsx: what still works, for how long, and what takes its place.

To deprecate something: a warning class for the release that removes it (if there is none yet), an entry below, and a
call of `warn_deprecated` where the old way is taken. In that release the entry, its class and the old way go together;
a test fails until they do. A hook, or an argument of one, is announced in its specification instead, with a class of
this file: ``@hookspec(warn_on_impl=…)`` or ``@hookspec(warn_on_impl_args={"argument": …})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dsx.warned import warn_outside

__all__ = ["DsxDeprecationWarning", "RemovedIn03"]


class DsxDeprecationWarning(DeprecationWarning):
    """Something of dsx that will go away; turn it into an error to find every place that uses it."""

    release: ClassVar[str] = ""
    """The release that removes it."""


class RemovedIn03(DsxDeprecationWarning):
    """Goes away in dsx 0.3."""

    release = "0.3"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """One old way of doing something."""

    what: str
    since: str
    """The release that began to warn."""
    warning: type[DsxDeprecationWarning]
    """Says in which release it goes away."""
    instead: str
    """What to do in its place."""

    @property
    def removed_in(self) -> str:
        """The release in which it no longer works."""
        return self.warning.release

    @property
    def message(self) -> str:
        """What its user reads."""
        return f"{self.what} is deprecated since dsx {self.since} and goes away in {self.removed_in}: {self.instead}"


DEPRECATIONS: Mapping[str, Deprecation] = {
    "config_params": Deprecation(
        what="dsx.initialize(config_params=…)",
        since="0.1",
        warning=RemovedIn03,
        instead="pass the same value as config=",
    ),
}
"""By a short name, which `warn_deprecated` takes."""


def warn_deprecated(name: str) -> None:
    """Warn of one entry, pointing at the line outside of dsx that takes the old way."""
    entry = DEPRECATIONS[name]
    warn_outside(entry.message, entry.warning)
