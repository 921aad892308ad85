"""The hang report: which ranks are behind, where they parted, which module was called unequally. Pure text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsx.comm.journal import Record

Position = Mapping[str, Any]
"""What a rank posts: ``groups`` (name -> journal), ``waiting`` ((group, call) or None), ``where`` and ``left``."""

SHOWN = 6
"""Sites with unequal calls that a report lists."""


def compose(positions: Mapping[int, Position | None], *, group: str, cause: str) -> str:
    """The report on one group. ``positions``: by world rank, ``None`` for a rank that gave no answer."""
    journals = {rank: _records(position, group) for rank, position in positions.items()}
    lines = [f"{cause}:"]
    lines += [f"  {_stand(rank, position, journals[rank], group)}" for rank, position in positions.items()]
    lines += _behind(positions, group)
    lines += _parting(journals)
    lines += _unequal(positions, group)
    lines.append(
        "every rank of a group must make the same calls in the same order: look for a branch, a module call or a loop "
        "that only some ranks run, and for a rank that has failed above"
    )
    return "\n".join(lines)


def _journal(position: Position | None, group: str) -> Mapping[str, Any]:
    nothing: Mapping[str, Any] = {"seq": 0, "counts": {}, "calls": []}
    return nothing if position is None else position["groups"].get(group, nothing)


def _records(position: Position | None, group: str) -> list[Record]:
    return [Record(*call) for call in _journal(position, group)["calls"]]


def _stand(rank: int, position: Position | None, records: Sequence[Record], group: str) -> str:
    """One rank's place, in one line."""
    if position is None:
        return f"rank {rank} gave no answer: its process has ended or is stuck outside Python"
    where = f", {position['where']}" if position["where"] else ""
    if position["left"]:
        return f"rank {rank} has finished and left after {_journal(position, group)['seq']} calls"
    if position["waiting"] is not None:
        waits_in, call = position["waiting"]
        for record in records:
            if waits_in == group and record.seq == call:
                return f"rank {rank} waits at {record.line()}{where}"
        return f"rank {rank} waits in another group, '{waits_in}', at call {call}{where}"
    last = f"after {records[-1].line()}" if records else "before its first call"
    return f"rank {rank} is {last}, in no collective{where}"


def _behind(positions: Mapping[int, Position | None], group: str) -> list[str]:
    """The ranks that have made fewer calls than the others."""
    made = {rank: _journal(position, group)["seq"] for rank, position in positions.items() if position is not None}
    if len(set(made.values())) < 2:
        return []
    most = max(made.values())
    behind = [f"rank {rank} ({seq} of {most} calls)" for rank, seq in made.items() if seq < most]
    return [f"behind: {', '.join(behind)}"]


def _parting(journals: Mapping[int, Sequence[Record]]) -> list[str]:
    """The first remembered call at which two ranks did different things."""
    by_call: dict[int, dict[int, Record]] = {}
    for rank, records in journals.items():
        for record in records:
            by_call.setdefault(record.seq, {})[rank] = record
    for call in sorted(by_call):
        if len({record.key() for record in by_call[call].values()}) > 1:
            did = [f"rank {rank} {record.line()}" for rank, record in by_call[call].items()]
            return [f"the ranks parted at call {call}: {'; '.join(did)}"]
    return []


def _unequal(positions: Mapping[int, Position | None], group: str) -> list[str]:
    """Sites that the ranks have called unequally often in this update."""
    counts = {rank: _journal(p, group)["counts"] for rank, p in positions.items() if p is not None and not p["left"]}
    sites = sorted({site for by_site in counts.values() for site in by_site})
    spread = {site: [by_site.get(site, 0) for by_site in counts.values()] for site in sites}
    unequal = [site for site in sites if len(set(spread[site])) > 1]
    unequal.sort(key=lambda site: min(spread[site]) - max(spread[site]))
    return [
        f"unequal calls of '{site}' in this update: "
        + ", ".join(f"rank {rank} {number}" for rank, number in zip(counts, spread[site], strict=True))
        for site in unequal[:SHOWN]
    ]
