"""Ranks that differ are told so, by name, in every stage, before they wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from zero_helpers import STAGES, config, engine_of

from dsx.errors import DsxError
from dsx.testing.awkward import Awkward, awkward_batch

Ranks = Callable[..., list[Any]]


def differing(what: str) -> list[str]:
    """The message of each try, on this rank."""
    odd = torch.distributed.get_rank() == 1
    messages = []
    for stage in (0, 2, 3):
        model: nn.Module = Awkward()
        settings, params = config(stage, gradient_clipping=1.0), None
        if what == "clipping" and odd:
            settings = config(stage, gradient_clipping=2.0)
        if what == "stage" and odd:
            settings = config(1, gradient_clipping=1.0)
        if what == "bucket" and odd:
            settings["zero_optimization"]["reduce_bucket_size"] = 70
        if what == "name" and odd:
            model.extra = nn.Parameter(torch.zeros(2))
        if what == "shape" and odd:
            model.leave = nn.Linear(9, 2)
        if what == "frozen" and odd:
            model.leave.bias.requires_grad_(False)
        if what == "groups":
            named = list(model.parameters())
            cut = 6 if odd else 5
            params = [{"params": named[:cut]}, {"params": named[cut:]}]
        try:
            with engine_of(model, settings, model_parameters=params):
                messages.append("nothing was raised")
        except DsxError as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("clipping", "gradient_clipping"),
        ("stage", "zero_optimization"),
        ("bucket", "zero_optimization"),
        ("name", "'extra'"),
        ("shape", "'leave.weight'"),
        ("frozen", "'leave.bias'"),
        ("groups", "group 0"),
    ],
)
def test_ranks_that_differ_are_named_with_what_differs(what: str, words: str, ranks: Ranks) -> None:
    for messages in ranks(differing, what, deadline=30.0):
        assert len(messages) == 3
        for message in messages:
            assert "rank 1" in message
            assert "rank 0" in message
            assert words in message


def stays_usable() -> list[bool]:
    """After a refusal the same process makes an engine that works."""
    good = []
    for stage in STAGES:
        try:
            with engine_of(Awkward(), config(stage, seed=torch.distributed.get_rank())):
                good.append(False)
        except DsxError:
            with engine_of(Awkward(), config(stage)) as engine:
                engine.backward(engine(*awkward_batch(0, 0, engine.data_group.rank)))
                engine.step()
                good.append(engine.was_step_applied)
    return good


def test_a_refusal_leaves_the_process_usable(ranks: Ranks) -> None:
    assert ranks(stays_usable) == [[True] * 4] * 2
