"""Ranks with different plugins are told which, where and what to do, on every rank, and none waits for another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from fake_plugins import plugin
from torch import nn

import dsx
from dsx.builtin import plugin as builtin
from dsx.errors import PlanError
from dsx.planning.same import Present, difference
from dsx.plugin.discovery import Found
from dsx.plugin.manager import PluginManager

CONFIG = {"train_micro_batch_size_per_gpu": 1}
CORE = Found("core", "dsx-core", "0", builtin)


def acme(version: str = "1.0", **more: Any) -> Found:
    return Found("acme", "acme-dsx", version, plugin("acme"), **more)


BROKEN = Found("acme", "acme-dsx", "1.0", state="broken", cause="importing acme raised OSError: 7", remedy="mend it")
BLOCKED = Found("acme", "acme-dsx", "1.0", state="blocked", cause="blocked by request", remedy="unblock 'acme'")
CASES: dict[str, Callable[[int], list[Found]]] = {
    "missing": lambda rank: [acme()] if rank != 1 else [],
    "version": lambda rank: [acme("2.0" if rank == 2 else "1.0")],
    "broken": lambda rank: [acme() if rank == 0 else BROKEN],
    "blocked": lambda rank: [BLOCKED if rank == 0 else acme()],
    "same": lambda rank: [acme()],
}


def told(case: str) -> str:
    """What this rank is told, with the plugins that it has in this case."""
    rank = int(os.environ["RANK"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a plugin is broken
        plugins = PluginManager([CORE, *CASES[case](rank)])
    try:
        dsx.initialize(model=nn.Linear(2, 1), config=CONFIG, plugins=plugins)[0].close()
    except PlanError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", "plugin 'acme' (acme-dsx 1.0) is on ranks 0, 2, missing on rank 1"),
        ("version", "plugin 'acme' (acme-dsx 1.0) is on ranks 0-1, (acme-dsx 2.0) is on rank 2"),
        (
            "broken",
            "plugin 'acme' (acme-dsx 1.0) is on rank 0, broken (acme-dsx 1.0: importing acme raised OSError: 7; "
            "what to do: mend it) on ranks 1-2",
        ),
        ("blocked", "plugin 'acme' (acme-dsx 1.0) is on ranks 1-2, blocked (acme-dsx 1.0: blocked by request"),
    ],
)
def test_every_rank_is_told_who_differs(case: str, words: str, ranks: Callable[..., list[Any]]) -> None:
    messages = ranks(told, case, world=3, deadline=30.0)
    assert len(set(messages)) == 1
    assert words in messages[0]
    assert "planned something else" not in messages[0]  # the configuration is the same
    assert "\n    what to do: install the same plugins in the same versions for every rank" in messages[0]
    assert messages[0].endswith("DSX_PLUGINS_BLOCK=acme-dsx")


def test_ranks_with_the_same_plugins_train(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(told, "same", world=2, deadline=30.0) == ["nothing", "nothing"]


def here(folder: str) -> Present:
    return Present("mine", f"pyproject.toml of {folder}", "", "active", "")


def test_local_plugins_are_the_same_wherever_their_folder_is() -> None:
    elsewhere = [[here("/a")], [here("/b")]]
    assert "mine" not in difference({"config seed": [1]}, elsewhere)
    assert "rank 1 has planned something else than rank 0: config seed differ" in difference(
        {"config seed": [1]}, elsewhere
    )


def test_what_may_follow_from_the_plugins_says_so() -> None:
    message = difference(
        {"plugins": [1, 2, 3, 5], "resources": [1, 2, 3, 5]}, [[here("/a")], [], [], [], [here("/a")], []]
    )
    assert "(pyproject.toml of /a) is on ranks 0, 4, missing on ranks 1-3, 5" in message
    assert "ranks 1-3, 5 have planned something else than rank 0: resources differ, which may follow" in message
    assert message.count("\n    what to do: ") == 1
