"""What a check finds: one finding a check, and the report that they make."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Verdict(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WRONG = "wrong"
    SLOW = "slow"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found and, where that is not well, what to do."""

    area: str
    check: str
    verdict: Verdict
    found: str
    remedy: str = ""

    @property
    def bad(self) -> bool:
        """Whether the author has something to mend."""
        return self.verdict in (Verdict.WRONG, Verdict.SLOW)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """As a row of the table."""
        return self.area, self.check, self.verdict.value, self.found, self.remedy

    def plain(self) -> dict[str, str]:
        """As JSON data."""
        return dict(zip(COLUMNS, self.cells, strict=True))

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Finding:
        """What `plain` gave."""
        area, check, verdict, found, remedy = (str(data[name]) for name in COLUMNS)
        return cls(area, check, Verdict(verdict), found, remedy)


COLUMNS = ("area", "check", "result", "found", "what to do")


def ok(area: str, check: str, found: str) -> Finding:
    """All is well."""
    return Finding(area, check, Verdict.OK, found)


def wrong(area: str, check: str, found: str, remedy: str) -> Finding:
    """Something that breaks a training, or the contract."""
    return Finding(area, check, Verdict.WRONG, found, remedy)


def not_applicable(area: str, check: str, found: str) -> Finding:
    """Nothing to check here, with the reason."""
    return Finding(area, check, Verdict.NOT_APPLICABLE, found)


def judged(area: str, check: str, problems: list[str], *, good: str, remedy: str) -> Finding:
    """Wrong with every problem, or well where there are none."""
    return wrong(area, check, "; ".join(problems), remedy) if problems else ok(area, check, good)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was checked of one plugin, in the order of the areas."""

    plugin: str
    distribution: str
    version: str
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that the author has to mend: wrong or slow."""
        return tuple(finding for finding in self.findings if finding.bad)

    @property
    def rows(self) -> tuple[tuple[str, str, str, str, str], ...]:
        """Area, check, result, what was found, what to do; neighbours that are well in the same words share a row."""
        rows: list[tuple[str, str, str, str, str]] = []
        for finding in self.findings:
            area, check, *rest = finding.cells
            alike = finding.verdict is Verdict.OK and rows and (rows[-1][0], *rows[-1][2:]) == (area, *rest)
            checks = f"{rows.pop()[1]}, {check}" if alike else check
            rows.append((area, checks, *finding.cells[2:]))
        return tuple(rows)

    @property
    def title(self) -> str:
        """``acme (acme-dsx 1.0)``."""
        provider = " ".join(part for part in (self.distribution, self.version) if part)
        return f"{self.plugin} ({provider})" if provider else self.plugin

    @property
    def summary(self) -> str:
        """One line: how many checks, and how many of them ended badly."""
        done = [finding for finding in self.findings if finding.verdict is not Verdict.NOT_APPLICABLE]
        slow = sum(finding.verdict is Verdict.SLOW for finding in done)
        bad = sum(finding.verdict is Verdict.WRONG for finding in done)
        return f"{len(done)} checks of {self.title}: {bad} wrong, {slow} slow"

    def as_json(self) -> str:
        """As JSON text, for other programs."""
        data = {
            "plugin": self.plugin,
            "distribution": self.distribution,
            "version": self.version,
            "wrong": len(self.wrong),
            "findings": [finding.plain() for finding in self.findings],
        }
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def markdown(self) -> str:
        """As a table for people."""
        lines = [f"# {self.summary}", "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
        lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in self.rows]
        return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
