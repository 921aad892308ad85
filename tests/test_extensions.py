"""Every kind and every hook of dsx, extended from outside by one file of examples/extensions, and seen to work."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from extension_engines import EXAMPLES, MICRO, PLAIN, engine_of, managed, train
from torch import nn
from typer.testing import CliRunner

import dsx
from dsx.cli.main import build_app
from dsx.config.load import load_config
from dsx.errors import ConfigError, KernelError, LaunchError
from dsx.plugin import KINDS, hooks
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry
from dsx.testing import (
    check_codec,
    check_optimizer,
    check_partitioner,
    check_schedule,
    check_store,
    check_variants,
)
from examples.extensions import __main__ as listing

# Nothing is left out, and nothing is stale ----------------------------------------------------------------------------


def test_every_kind_and_every_hook_has_an_example() -> None:
    shown = [kind for module in EXAMPLES.values() for kind in listing.kinds(module)]
    assert sorted(shown) == sorted(["kernel", *(kind.name for kind in KINDS)])
    implemented = {hook for module in EXAMPLES.values() for hook in ("dsx_plugin", *listing.hooks(module))}
    assert implemented == {name for name in vars(hooks) if name.startswith("dsx_")}


def test_all_of_them_live_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_ACCELERATOR", "cpu")  # another would keep this process on some cores
    manager = managed(*EXAMPLES)
    assert set(manager.names) == {"core", *(module.SPEC.name for module in EXAMPLES.values())}
    with dsx.initialize(model=nn.Linear(4, 4), config=PLAIN, plugins=manager)[0] as engine:
        assert train(engine)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_it_says_turns_it_on_is_a_configuration(name: str) -> None:
    turned_on = re.findall(r"``(\"\w+\": .+?)``", EXAMPLES[name].__doc__ or "", flags=re.DOTALL)
    for snippet in turned_on:
        load_config(json.loads(f"{{{snippet}}}"), plugins=managed(name))
    assert turned_on or name in ("accelerator", "command", "kernel_variant", "runner")


def test_the_page_shows_them_all(root: Path) -> None:
    page = (root / "docs" / "extend.md").read_text(encoding="utf-8")
    assert listing.table() in page, f"docs/extend.md is stale, wanted:\n{listing.table()}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_one_small_file_that_needs_dsx_alone(name: str, root: Path) -> None:
    text = (root / "examples" / "extensions" / f"{name}.py").read_text(encoding="utf-8")
    assert 20 <= text.count("\n") <= 100
    packages = set(re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE))
    assert packages & {"dsx_zero", "dsx_native", "examples"} == set()
    assert re.search(r"^from dsx\.plugin import", text, flags=re.MULTILINE)


# Components -----------------------------------------------------------------------------------------------------------


def test_the_optimizer_keeps_every_law_and_trains() -> None:
    check_optimizer("signum", params={"lr": 1e-3}, registry=Registry(managed("optimizer"), kernels=""))
    with engine_of("optimizer", optimizer={"type": "signum", "params": {"lr": 0.01, "momentum": 0.0}}) as engine:
        before = engine.full_state_dict()
        train(engine)
        moved = {name: (value - before[name]).abs() for name, value in engine.full_state_dict().items()}
    assert all(torch.allclose(step, torch.full_like(step, 0.01), atol=1e-6) for step in moved.values())


def test_the_schedule_sets_rates() -> None:
    params = {"total": 8, "warmup": 2, "decay": 4}
    check_schedule("Trapezoid", params=params, registry=Registry(managed("schedule"), kernels=""))
    with engine_of("schedule", scheduler={"type": "trapezoid", "params": params}) as engine:
        rates = [rate for _ in range(9) for rate in [engine.get_lr()[0]] if train(engine)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1, 0.075, 0.05, 0.025, 0.0])
    with pytest.raises(ConfigError, match="warmup 5 and decay 4 of 8"):
        engine_of("schedule", scheduler={"type": "Trapezoid", "params": {**params, "warmup": 5}})


def test_the_kernel_variant_is_chosen_and_right() -> None:
    assert "whole" in check_variants("adam_step", registry=Registry(managed("kernel_variant"), kernels=""))
    kernels = Registry(managed("kernel_variant"), kernels="").kernels
    assert kernels.chosen("adam_step", like=torch.zeros(1)) == "whole"
    assert kernels.chosen("adam_step", like=torch.zeros(1, dtype=torch.float64)) == "torch"
    with pytest.raises(KernelError, match="whole.*cannot run.*float64"):
        Registry(managed("kernel_variant"), kernels="adam_step=whole").kernel(
            "adam_step", like=torch.zeros(1, dtype=torch.float64)
        )
    adam = {"type": "Adam", "params": {"lr": 0.01}}
    with engine_of("kernel_variant", optimizer=adam) as ours, engine_of("schedule", optimizer=adam) as reference:
        assert train(ours, 3) == pytest.approx(train(reference, 3), rel=1e-6)


def test_the_codec_keeps_every_law() -> None:
    check_codec(EXAMPLES["codec"].Float8)


def test_the_partitioner_cuts_what_is_recomputed() -> None:
    check_partitioner(EXAMPLES["partitioner"].even)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 64))
    section = {"modules": ["Linear"], "number_checkpoints": 2, "partitioner": "even"}
    with engine_of("partitioner", model=model, activation_checkpointing=section) as engine:
        assert [type(layer) is nn.Linear for layer in engine.module] == [False, True, True, False]
        train(engine)


def test_the_monitor_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "metrics.sqlite"
    with engine_of("monitor", monitors=[{"type": "sqlite", "params": {"path": str(path)}}]) as engine:
        losses = train(engine, 2)
    file = sqlite3.connect(path)
    found = file.execute("SELECT step, value FROM metrics WHERE name = 'Train/Samples/train_loss'").fetchall()
    file.close()
    assert [step for step, _ in found] == [MICRO, 2 * MICRO]
    assert [value for _, value in found] == pytest.approx(losses)
    with pytest.raises(ConfigError, match=r"monitors\[0\].params.file is not a parameter of sqlite"):
        engine_of("monitor", monitors=[{"type": "sqlite", "params": {"file": "x"}}])


def test_the_store_keeps_three(tmp_path: Path) -> None:
    check_store(EXAMPLES["store"].LastThree, folder=tmp_path / "laws")
    with engine_of("store", checkpoint={"store": "last_three"}) as engine:
        for _ in range(5):
            train(engine)
            engine.save_checkpoint(tmp_path / "kept")
        wanted = engine.full_state_dict()
        train(engine)
        engine.load_checkpoint(tmp_path / "kept")
        assert all(torch.equal(value, wanted[name]) for name, value in engine.full_state_dict().items())
    assert sorted(path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()) == [
        "global_step3", "global_step4", "global_step5",
    ]  # fmt: skip


def test_the_runner_says_what_it_would_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pdsh").write_text("#!/bin/sh\n")
    (tmp_path / "pdsh").chmod(0o755)
    hosts = tmp_path / "machines"
    hosts.write_text("one slots=2\ntwo slots=2\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DSX_PLUGINS", "examples.extensions.runner")
    arguments = ["run", "--runner", "pdsh", "--hostfile", str(hosts), "--dry-run", "train.py", "--share", "10%"]
    told = CliRunner().invoke(build_app(plugin_manager()), arguments)
    assert told.exit_code == 0, told.output
    assert told.output.startswith("pdsh -S -w one,two ")
    assert "dsx.launch.agent --nodes 2 --nproc 2 --master-addr one" in told.output
    assert "--node-rank %n train.py --share 10%%" in told.output
    with pytest.raises(LaunchError, match="make their slots equal"):
        EXAMPLES["runner"].PdshRunner().commands(nodes={"one": (0,), "two": (0, 1)}, program=[], environment={})


def test_the_accelerator_is_chosen_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES["accelerator"]
    for node, listed in enumerate(["0-2,4", "7", ""]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(listed + "\n")
    stayed: list[Any] = []
    monkeypatch.setattr(example, "NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: stayed.append(cores), raising=False)
    monkeypatch.setenv("DSX_ACCELERATOR", "numa")
    with engine_of("accelerator") as engine:
        assert type(engine.accelerator) is example.NumaAccelerator
        assert engine.accelerator.device_count() == 2
        assert train(engine)
    assert stayed == [{0, 1, 4}]
    assert [row.value.value for row in managed("accelerator").report() if row.value.topic == "numa"] == [
        "4 cores, 1 cores"
    ]
    monkeypatch.setattr(example, "NODES", tmp_path / "nowhere")
    with pytest.raises(dsx.errors.DsxError, match="'numa' cannot run here: no node is listed"):
        engine_of("accelerator")


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts products of matrices by the biased linear layers' own operation."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten.addmm.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("method", "repeated"), [("non_reentrant", 4), ("keep_products", 2)])
def test_the_way_of_recomputing_keeps_products(method: str, repeated: int) -> None:
    def made() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU()))

    section = {"modules": ["0"], "method": method}
    with (
        engine_of("activation_checkpoint", model=made(), activation_checkpointing=section) as engine,
        engine_of("activation_checkpoint", model=made()) as plain,
    ):
        with Products() as products:
            losses = train(engine)
        assert products.count == repeated
        assert losses + train(engine, 2) == train(plain) + train(plain, 2)
