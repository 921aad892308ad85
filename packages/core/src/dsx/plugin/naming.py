"""Names the plugin in whatever goes wrong in its code: one message with who, from where, what, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from dsx.errors import DsxError, PluginError

OURS = "'core' (dsx-core"
"""The core's own plugin, which need not be named where its own errors pass."""

REMEDY = "\n    what to do: "
"""What stands before the last line of each message."""


@dataclass(frozen=True, slots=True)
class Who:
    """A plugin as messages speak of it."""

    provider: str
    """``'zero' (dsx-zero 0.1.0)``."""
    block: str = ""
    """By what name it is blocked; nothing for an object that the caller gave."""

    @property
    def remedy(self) -> str:
        """What a user can do about a plugin that fails."""
        way = f"block it: DSX_PLUGINS_BLOCK={self.block}" if self.block else "leave it out of plugins="
        return f"report it to the plugin's authors, or {way}"

    def fault(self, what: str, *, remedy: str = "") -> PluginError:
        """``plugin 'x' (x-dsx 1.0) …`` and what to do."""
        return PluginError(f"plugin {self.provider} {what}{REMEDY}{remedy or self.remedy}")

    def wrong(self, where: str, *, found: str, wanted: str) -> PluginError:
        """An answer that is of no use."""
        return self.fault(f"gave the wrong kind of answer in {where}: found {found}, wanted {wanted}")


@contextmanager
def naming(who: Who, where: str, *, remedy: str = "") -> Iterator[None]:
    """Around a call of a plugin's code: what it raises becomes a PluginError; a DsxError gains a note of who it was."""
    try:
        yield
    except DsxError as error:
        add_note(error, who, where)
        raise
    except Exception as error:
        raise who.fault(f"failed in {where}: {type(error).__name__}: {error}", remedy=remedy) from error


def add_note(error: BaseException, who: Who, where: str) -> None:
    """Write on an error that passes who raised it; once, where several of these lie around each other."""
    note = f"raised in {where} of plugin {who.provider}"
    said = (str(error), *getattr(error, "__notes__", ()))
    if who.provider.startswith(OURS) or any(who.provider in text for text in said):
        return
    error.add_note(note if isinstance(error, DsxError) else f"{note}{REMEDY}{who.remedy}")


@dataclass(frozen=True, slots=True)
class Named:
    """A function of a plugin's value, such as a pass's ``apply``, under the plugin's name. Never called in a step."""

    function: Callable[..., Any]
    who: Who
    where: str
    returns: type | None = None
    """Of what class the result must be."""

    @property
    def label(self) -> str:
        """``partitioner 'x' of plugin 'acme' (acme-dsx 1.0)``."""
        return f"{self.where} of plugin {self.who.provider}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with naming(self.who, self.where):
            answer = self.function(*args, **kwargs)
        if self.returns is not None and not isinstance(answer, self.returns):
            raise self.who.wrong(self.where, found=type(answer).__name__, wanted=f"a {self.returns.__name__}")
        return answer


@dataclass(frozen=True, slots=True)
class NamedContext(AbstractContextManager[Any]):
    """A plugin's context manager under its name; what the body raises is the body's and passes as it is."""

    inner: AbstractContextManager[Any]
    who: Who
    where: str

    def __enter__(self) -> Any:
        with naming(self.who, f"{self.where}, entering"):
            return self.inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return self.inner.__exit__(kind, error, trace)
        except Exception as raised:
            if raised is error:
                raise
            with naming(self.who, f"{self.where}, leaving"):
                raise


def parts(error: BaseException, who: Who) -> tuple[str, str]:
    """(cause, what to do) of a message made here, for a table that names the plugin in another column."""
    cause, _, remedy = str(error).removeprefix(f"plugin {who.provider} ").partition(REMEDY)
    return cause, remedy or who.remedy
