"""Machines and their slots: ``host slots=N`` a line, with filters as ``host:0,2@other``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dsx.errors import LaunchError, did_you_mean

Hosts = Mapping[str, tuple[int, ...]]
"""Slots (devices) by machine, in the order of the file."""

_LINE = re.compile(r"(?P<host>\S+)\s+slots\s*=\s*(?P<slots>\d+)")


def read_hostfile(path: Path) -> Hosts:
    """The machines of a file. Empty lines and what follows ``#`` are left out. Raises LaunchError, naming the line."""
    try:
        text = path.read_text()
    except OSError as error:
        raise LaunchError(f"cannot read the hostfile {path}: {error.strerror}") from error
    return parse_hostfile(text, name=str(path))


def parse_hostfile(text: str, *, name: str = "hostfile") -> Hosts:
    """The machines of a hostfile's text."""
    hosts: dict[str, tuple[int, ...]] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise LaunchError(f"{name}, line {number}: found {line!r}; wanted 'host slots=N'")
        host = match["host"]
        if host in hosts:
            raise LaunchError(
                f"{name}, line {number}: machine '{host}' is given twice; give it once with all its slots"
            )
        hosts[host] = tuple(range(int(match["slots"])))
    if not any(hosts.values()):
        raise LaunchError(f"{name} names no slot; wanted at least one line 'host slots=N'")
    return hosts


def choose_slots(hosts: Hosts, *, include: str = "", exclude: str = "") -> Hosts:
    """The machines and slots that the filters leave.

    A filter is ``host[:slot,slot…]`` joined by ``@``. ``include`` keeps only what it names, ``exclude`` drops it; a
    machine without a slot left is dropped. Raises LaunchError for unknown machines and slots.
    """
    if include and exclude:
        raise LaunchError(f"found both include {include!r} and exclude {exclude!r}; give one of them")
    if include:
        left = _parse_filter(include, hosts)
    else:
        dropped = _parse_filter(exclude, hosts) if exclude else {}
        left = {host: tuple(s for s in slots if s not in dropped.get(host, ())) for host, slots in hosts.items()}
    left = {host: left[host] for host in hosts if left.get(host)}
    if not left:
        raise LaunchError(f"no slot is left of {', '.join(hosts)} after include {include!r}, exclude {exclude!r}")
    return left


def visible_devices(slots: tuple[int, ...], *, given: str | None) -> str:
    """The device list for a machine's slots: slots count among the devices that a given list leaves visible."""
    if given is None:
        return ",".join(str(slot) for slot in slots)
    devices = [device.strip() for device in given.split(",") if device.strip()]
    missing = [slot for slot in slots if slot >= len(devices)]
    if missing:
        raise LaunchError(
            f"slot {missing[0]} is not there: the visible devices are {given!r}, so slots run from 0 to "
            f"{len(devices) - 1}"
        )
    return ",".join(devices[slot] for slot in slots)


def _parse_filter(text: str, hosts: Hosts) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        host, colon, listed = part.strip().partition(":")
        if host not in hosts:
            raise LaunchError(
                f"filter {text!r}: no machine '{host}'{did_you_mean(host, hosts)}; it knows {', '.join(hosts)}"
            )
        slots = _numbers(listed, text) if colon else hosts[host]
        unknown = [slot for slot in slots if slot not in hosts[host]]
        if unknown:
            there = len(hosts[host])
            raise LaunchError(f"filter {text!r}: machine '{host}' has no slot {unknown[0]}; it has {there} slots")
        found[host] = tuple(sorted({*found.get(host, ()), *slots}))
    return found


def _numbers(listed: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in listed.split(","))
    except ValueError:
        raise LaunchError(f"filter {text!r}: found slots {listed!r}; wanted numbers such as 0,2") from None
