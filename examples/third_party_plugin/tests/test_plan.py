"""What the plugin says before anything is built: its section, its automatic value, its claim."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import dsx
import pytest
from dsx.errors import ConfigError, PlanError
from dsx.planning.plan import Plan
from dsx.plugin import World
from two_embeddings import settings

from acme_sparse_adam import NAME
from acme_sparse_adam.config import SparseAdamSection


def plan_of(more: Mapping[str, Any], *, optimizer: str = NAME) -> Plan:
    return dsx.make_plan(settings(optimizer, **more), world=World())


def test_by_itself_it_asks_for_nothing() -> None:
    plan = plan_of({"fp16": {"enabled": True}}, optimizer="AdamW")
    assert plan.config.section(SparseAdamSection) == SparseAdamSection(report_every=0, parameters=("*",))
    assert not [item for item in plan.claims if item.plugin == NAME]


@pytest.mark.parametrize(("printed", "every"), [(7, 7), (float("inf"), 0), (None, 0)])
def test_auto_follows_the_progress_line(printed: float | None, every: int) -> None:
    plan = plan_of({"steps_per_print": printed, NAME: {"report_every": "auto"}})
    assert plan.config.section(SparseAdamSection).report_every == every
    assert [item.why for item in plan.resolved if item.key == f"{NAME}.report_every"]


@pytest.mark.parametrize(
    ("section", "said"),
    [({"report_every": -1}, "report_every"), ({"report_evry": 1}, "did you mean 'report_every'"), (3, NAME)],
)
def test_a_wrong_section_is_refused(section: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_of({NAME: section})


def test_bf16_will_do() -> None:
    plan = plan_of({"bf16": {"enabled": True}})
    assert [item.claim.resource for item in plan.claims if item.plugin == NAME] == ["dtype"]


@pytest.mark.parametrize(
    "more",
    [
        {"fp16": {"enabled": True}},
        {"communication_data_type": "fp16"},
        {"torch_autocast": {"enabled": True, "dtype": "fp16"}},
    ],
)
def test_fp16_is_refused_wherever_it_rounds_gradients(more: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="a gradient that rounds to zero in fp16") as caught:
        plan_of(more)
    assert "nearest legal" in str(caught.value)


def test_finding_the_plugin_imports_nothing_that_it_builds() -> None:
    code = "import sys, acme_sparse_adam.plugin as p; list(p.dsx_components()); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for module in ("optimizer", "observer", "kernels.masked", "kernels.gathered"):
        assert f"acme_sparse_adam.{module}" not in shown
