"""Claims: one setter a resource, every need judged against the final state, all problems at once, in any order."""

from __future__ import annotations

from itertools import permutations

import pytest
from fake_plugins import manager, plugin

from dsx.errors import PlanError
from dsx.planning.claims import settle
from dsx.planning.make import make_plan
from dsx.planning.plan import Claimed
from dsx.plugin import RESOURCES, Claim, Problem, World, needs, sets

ZERO = Claimed("zero", sets("grad", "sharded", why="zero_optimization.stage=2"))
ONEBIT = Claimed(
    "onebit_adam",
    needs("grad", "whole", why="it compresses the momentum itself", nearest="zero_optimization.stage=1"),
)
BATCH = {"train_micro_batch_size_per_gpu": 1}


def test_nobody_sets_means_defaults() -> None:
    settled = settle([])
    assert settled.states == dict(RESOURCES)
    assert (settled.owners, settled.problems) == ({}, ())


def test_setter_becomes_owner() -> None:
    settled = settle([ZERO])
    assert (settled.states["grad"], settled.owners) == ("sharded", {"grad": "zero"})
    assert settled.problems == ()


def test_unmet_need_reads_as_promised() -> None:
    assert settle([ZERO, ONEBIT]).problems == (
        "'onebit_adam' needs grad whole (it compresses the momentum itself), but it is sharded, "
        "set by 'zero' (zero_optimization.stage=2)\n    nearest legal: zero_optimization.stage=1",
    )
    assert settle([ONEBIT]).problems == ()


def test_need_of_what_nobody_sets() -> None:
    (problem,) = settle([Claimed("a", needs("dtype", "bf16", "fp16", why="its kernel"))]).problems
    assert problem == "'a' needs dtype bf16 or fp16 (its kernel), but it is fp32, as nothing sets it"


def test_every_problem_in_any_order() -> None:
    claims = [
        ZERO,
        ONEBIT,
        Claimed("other", sets("grad", "offloaded", why="because")),
        Claimed("odd", sets("grads", "whole", why="a slip")),
    ]
    results = {tuple(sorted(settle(some).problems)) for some in permutations(claims)}
    assert len(results) == 1
    text = "\n".join(results.pop())
    assert "grad can be set by one plugin only: 'other' sets it offloaded (because) and 'zero' sets it sharded" in text
    assert "'odd' speaks of an unknown resource 'grads' (did you mean 'grad'?)" in text
    assert "'onebit_adam' needs grad whole" in text


def test_one_plugin_may_repeat_but_not_contradict_itself() -> None:
    again = Claimed("zero", sets("grad", "sharded", why="again"))
    assert settle([ZERO, again]).problems == ()
    (problem,) = settle([ZERO, Claimed("zero", sets("grad", "whole", why="no"))]).problems
    assert "one plugin only" in problem


def test_planning_shows_claims_and_checks_together() -> None:
    plugins = manager(
        plugin("zero", dsx_claims=lambda: [ZERO.claim]),
        plugin("onebit_adam", dsx_claims=lambda: [ONEBIT.claim]),
        plugin(
            "pipeline",
            dsx_check_plan=lambda plan: [Problem("pipeline.stages", "more stages than layers", "at most 12")],
        ),
    )
    with pytest.raises(PlanError) as caught:
        make_plan(BATCH, world=World(), plugins=plugins)
    message = str(caught.value)
    assert message.startswith("this configuration cannot run:\n  - 'onebit_adam' needs grad whole")
    assert "\n  - pipeline.stages: more stages than layers\n    nearest legal: at most 12" in message


@pytest.mark.parametrize(("name", "state"), [("fp16", "fp16"), ("bf16", "bf16"), ("seed", "fp32")])
def test_core_sets_dtype_from_the_precision(name: str, state: str) -> None:
    def claims() -> list[Claim]:
        return [needs("dtype", state, why="a test")]

    source = {**BATCH, name: {"enabled": True} if name != "seed" else 3}
    plan = make_plan(source, world=World(), plugins=manager(plugin("asks", dsx_claims=claims)))
    assert plan.states["dtype"] == state
    assert plan.owners.get("dtype") == (None if state == "fp32" else "core")
