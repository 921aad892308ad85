"""How checks speak: an AssertionError that names the law and the case, raised also under ``python -O``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn


def fail(message: str) -> NoReturn:
    """Raise an AssertionError."""
    __tracebackhide__ = True
    raise AssertionError(message)


def hold(condition: object, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(message)


@contextlib.contextmanager
def trying(what: str, *, allowed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """An error of the subject within the block is an AssertionError that says what was tried; ``allowed`` ones pass."""
    __tracebackhide__ = True
    try:
        yield
    except Exception as error:
        if isinstance(error, (AssertionError, *allowed)):
            raise
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
