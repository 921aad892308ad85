"""What a child process writes as it goes: where it is, what it has found. However the process ends, this stays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsx.authoring.check.findings import Finding


class Journal:
    """One line of JSON an event, written at once."""

    def __init__(self, path: Path, *, skip: Iterable[str] = ()) -> None:
        """skip: marks that have ended the process before; they are not entered again."""
        self._path = path
        self._skip = frozenset(skip)

    def may(self, mark: str) -> bool:
        """Say what comes now. Whether it may: not where it has ended an earlier process."""
        if mark in self._skip:
            return False
        self._write({"now": mark})
        return True

    def begin(self, step: str, *, area: str) -> bool:
        """A step of this area comes now. Whether it may, as for `may`."""
        self._write({"area": area})
        return self.may(step)

    def barred(self, mark: str) -> bool:
        """Whether this has ended an earlier process, which is a finding already."""
        return mark in self._skip

    def tell(self, finding: Finding) -> None:
        """Keep a finding."""
        self._write({"finding": finding.plain()})

    def answer(self, value: Any) -> None:
        """Keep what else the parent has asked for."""
        self._write({"answer": value})

    def done(self, step: str) -> None:
        """A step is complete."""
        self._write({"done": step})

    def _write(self, event: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def events(path: Path) -> list[dict[str, Any]]:
    """What has been written; a line that was cut off by the end of the process is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
