"""Ranks that succeed or fail together: no rank goes on where another has failed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dsx.errors import CheckpointError

if TYPE_CHECKING:
    from dsx.comm.collectives import Collectives

T = TypeVar("T")


def together(action: Callable[[], T], *, group: Collectives, site: str) -> list[T]:
    """Run an action on each rank and give every rank's result, in rank order.

    Where it raises on any rank, every rank raises one CheckpointError with the first failing rank's text.
    """
    cause: Exception | None = None
    answer: tuple[str, T | None]
    try:
        answer = ("", action())
    except Exception as error:  # noqa: BLE001 - whatever it was, the others must hear of it
        cause = error
        text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        answer = (text or type(error).__name__, None)
    answers = group.exchange_objects(answer, site=site)
    failed = [(rank, text) for rank, (text, _) in enumerate(answers) if text]
    if failed:
        rank, text = failed[0]
        everywhere = all(other == text for other, _ in answers)
        where = "" if everywhere else f" (rank {rank} of {group.size}; {len(failed)} failed)"
        raise CheckpointError(f"{text}{where}") from cause
    return [value for _, value in answers]


def unique(text: str, *, group: Collectives, site: str) -> list[str]:
    """The different texts among the ranks, in the order of the first rank that has each.

    Only digests and the different texts travel, since as a rule all ranks say the same.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    digests = group.exchange_objects(digest, site=site)
    if all(other == digest for other in digests):
        return [text]
    mine = digests.index(digest) == group.rank
    texts = group.exchange_objects(text if mine else None, site=site)
    return [other for other in texts if other is not None]
