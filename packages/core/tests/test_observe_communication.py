"""comms_logger, and the account of a mesh: what collectives moved, by operation and by site."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from observe_helpers import engine_of, train

from dsx.comm.journal import Account
from dsx.config.watching import CommsLoggerSection
from dsx.mesh.init import init_distributed
from dsx.mesh.mesh import Mesh
from dsx.observe.communication import CommunicationObserver, table
from dsx.plugin.types import MeshAxis
from dsx.testing.ranks import run_ranks


def _trained(section: dict[str, Any], steps: int | None) -> tuple[list[str], Account]:
    caught = io.StringIO()
    more = {} if steps is None else {"steps_per_print": steps}
    with contextlib.redirect_stderr(caught), engine_of(comms_logger={"enabled": True, **section}, **more) as engine:
        train(engine, micro_batches=3)
        account = engine.comm_account()
    return caught.getvalue().splitlines(), account


def test_one_table_at_the_end_without_an_interval() -> None:
    (lines, account), (silent, _) = run_ranks(_trained, {}, None, world=2)
    assert silent == []  # the precision line too is rank 0's
    assert lines[0].startswith("dsx precision: ")
    assert lines[1] == "step 3 | communication of rank 0"
    assert lines[2].split() == ["operation", "calls", "MiB", "sent", "s", "waited", "MiB", "a", "call"]
    shown = {line.split()[0]: int(line.split()[1]) for line in lines[3:]}
    assert shown == {op: cost.calls for op, cost in account.by_op.items()}
    assert account.by_op["all_reduce"].bytes > 0


def test_tables_at_the_interval_and_for_the_rest() -> None:
    (lines, _), _ = run_ranks(_trained, {}, 2, world=2)
    assert [line for line in lines if "communication" in line] == [
        "step 2 | communication of rank 0",
        "step 3 | communication of rank 0",
    ]


def test_single_calls_and_sites_of_chosen_operations() -> None:
    section = {"verbose": True, "debug": True, "prof_all": False, "prof_ops": ["allreduce"]}
    (lines, account), _ = run_ranks(_trained, section, None, world=2)
    single = [line for line in lines if line.startswith("comm | ")]
    assert single
    assert all(line.split(" | ")[2].startswith("all_reduce") for line in single)
    assert any(line.endswith(" | reduce gradients") for line in single)
    by_site = {line.partition("  ")[0]: line for line in lines if " at " in line.partition("  ")[0]}
    assert "all_reduce at reduce gradients" in by_site
    counted = sum(int(line.split("  ")[1:][0].split()[0]) for line in map(_squeezed, by_site.values()))
    assert counted == len(single)
    totals = [line for line in lines if line.startswith("all_reduce  ")]
    assert [int(line.split()[1]) for line in totals] == [account.by_op["all_reduce"].calls]
    assert not [line for line in lines if line.startswith("broadcast")]


def _squeezed(line: str) -> str:
    head, _, rest = line.partition("  ")
    return f"{head}  {rest.strip()}"


def _accounts() -> tuple[Account, list[tuple[str, str, int]]]:
    heard: list[tuple[str, str, int]] = []
    axes = (MeshAxis("data", 2), MeshAxis("tensor", 1))
    with Mesh(axes, world=init_distributed(), timeout=20.0) as mesh:
        group = mesh.group("data")
        mesh.listen(lambda group, record, sent, seconds: heard.append((group.name, record.op, sent)))
        value = torch.ones(64)
        group.all_reduce(value, site="a")
        work = group.all_reduce(value, site="b", wait=False)
        work.wait()
        work.wait()
        mesh.group("tensor").all_reduce(value, site="alone")
        mesh.control.all_reduce(value, site="agree")  # a group that is made after listening began
        total = mesh.account()
        mesh.listen(None)
        group.all_reduce(value, site="unheard")
        assert total.by_op["all_reduce"].calls == 4
        assert mesh.account().by_op["all_reduce"].calls == 5
        assert group.account.by_op["all_reduce"].calls == 3
    return total, heard


def test_the_account_of_a_mesh_is_that_of_all_its_groups() -> None:
    for total, heard in run_ranks(_accounts, world=2):
        assert [op for _, op, _ in heard] == ["all_reduce sum"] * 4
        assert heard[2][2] == 0
        assert heard[0][2] > 0
        assert total.by_op["all_reduce"].bytes == sum(sent for *_, sent in heard)


@pytest.mark.parametrize(
    ("asked", "op", "shown"),
    [
        (("all_gather_into_tensor",), "all_gather", True),
        (("allgather",), "all_gather", True),
        (("all_reduce",), "all_gather", False),
        (("reduce_scatter_tensor",), "reduce_scatter", True),
        ((), "all_reduce", False),
    ],
)
def test_operations_are_known_by_torchs_names(asked: tuple[str, ...], op: str, shown: bool) -> None:
    section = CommsLoggerSection(enabled=True, prof_all=False, prof_ops=asked)
    assert CommunicationObserver(section, None).shows(op) is shown


def test_a_lone_rank_that_calls_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with engine_of(comms_logger={"enabled": True, "prof_all": False}) as engine:
        train(engine)
    assert capsys.readouterr().err.splitlines()[1:] == ["step 1 | communication of rank 0: none"]


def test_columns_are_aligned() -> None:
    assert table(("name", "n"), [("long name", "1"), ("x", "100")]) == [
        "name         n",
        "long name    1",
        "x          100",
    ]
    assert table(("name", "n"), []) == ["name  n"]
