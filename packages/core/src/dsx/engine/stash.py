"""A typed bag in which plugins keep what belongs to one engine, with no clash and no setattr."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class StashKey(Generic[T]):
    """A key of a type of its own: two plugins cannot meet by name."""


class Stash:
    """Values by key; a key gives back the type it was made for."""

    def __init__(self) -> None:
        self._values: dict[StashKey[Any], Any] = {}

    def __setitem__(self, key: StashKey[T], value: T) -> None:
        self._values[key] = value

    def __getitem__(self, key: StashKey[T]) -> T:
        return cast(T, self._values[key])

    def __contains__(self, key: StashKey[Any]) -> bool:
        return key in self._values

    def pop(self, key: StashKey[T], default: T) -> T:
        """Take a value out, or give the default."""
        return cast(T, self._values.pop(key, default))
