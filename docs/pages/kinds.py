"""The page of kinds: what a component of each must be able to do, and who registers some."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from dsx.plugin import Kind, kinds, roles
from pages.components import by_kind, distribution_of
from pages.ours import our_plugins
from pages.spelling import in_markdown, members_of, summary_of

HEAD = """# Every kind of component

A plugin offers a component of a kind in [`dsx_components`](hooks.md#dsx_components); what is registered here is in the
[list of components](components.md). A kind is a value: a plugin that consumes components of its own makes one with
`Kind(name, summary)`, and others offer to it by importing nothing but the same name and summary.
"""


def constants() -> Iterator[tuple[str, Kind[Any], str]]:
    """(name in `dsx.plugin`, kind, what its components are), in the core's order."""
    annotations = inspect.get_annotations(kinds)
    names = {id(value): name for name, value in vars(kinds).items() if isinstance(value, Kind)}
    for kind in kinds.KINDS:
        name = names[id(kind)]
        yield name, kind, re.sub(r"^Kind\[(.*)\]$", r"\1", str(annotations[name]))


def role_of(annotation: str) -> type | None:
    """The role among its words, where it has one."""
    return next((vars(roles)[word] for word in re.findall(r"\w+", annotation) if word in vars(roles)), None)


def page() -> str:
    """The page of kinds."""
    plugins = our_plugins()
    registered = by_kind(plugins)
    parts = [HEAD]
    for name, kind, annotation in constants():
        parts.append(f"\n## {kind.name}\n\n`{name}`: {in_markdown(kind.summary)}. A component is a `{annotation}`.\n")
        role = role_of(annotation)
        if role is not None and getattr(role, "_is_protocol", False):
            lines = "\n".join(f"    {line}" for line in members_of(role))
            parts.append(f"\n{summary_of(role)}\n\n```text\nclass {role.__name__}(Protocol):\n{lines}\n```\n")
        by_distribution: dict[str, list[str]] = {}
        for item in registered[kind.name]:
            by_distribution.setdefault(distribution_of(plugins, item.plugin), []).append(f"`{item.value.name}`")
        who = "; ".join(f"{owner}: {', '.join(given)}" for owner, given in sorted(by_distribution.items()))
        parts.append(f"\nRegistered by {who}.\n" if who else "\nNone is registered by our distributions.\n")
    return "".join(parts)
