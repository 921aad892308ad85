"""The example of each hook, asked for real: the core takes its answer, and the answer has its effect."""

from __future__ import annotations

import ast
import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hook_examples import HOOKS, NAME, example_of, plugin_of, source_of
from torch import nn
from typer.testing import CliRunner

import dsx
from dsx.cli.main import build_app
from dsx.errors import PlanError
from dsx.plugin import OPTIMIZER, Component, Driver, Facts, Kernel, World
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.registry.registry import Registry

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
}


def asked(*hooks: str) -> PluginManager:
    """A manager of what is installed and of a plugin made of these examples."""
    return plugin_manager(extra=[plugin_of(*hooks)])


def planned(
    plugins: PluginManager, config: dict[str, Any] | None = None, *, ranks: int = 1, device: str = "cpu"
) -> Any:
    facts = Facts(parameters=1000, device=device)
    return dsx.make_plan({**CONFIG, **(config or {})}, world=World(size=ranks), facts=facts, plugins=plugins)


def of_example(answers: Any) -> list[Any]:
    """What the example gave, without what installed plugins give."""
    found = [tagged.value for tagged in answers if tagged.plugin == NAME]
    assert found, "the example gave nothing"
    return found


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[dsx.Engine]:
    """An engine over a small model, with the example that the test is marked with."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    hook = request.function.__name__.removeprefix("test_")
    with dsx.initialize(model=model, config=CONFIG, plugins=[plugin_of(hook)])[0] as engine:
        yield engine


class Summed(nn.Module):
    """Its output is its loss: the sum over rows of a linear layer without surprises."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(rows).sum()
        return result


def test_dsx_plugin() -> None:
    plugins = asked("dsx_plugin")
    assert NAME in plugins.names
    assert planned(plugins, {NAME: {"patience": 3}}).config.acme.patience == 3


def test_dsx_components() -> None:
    plugins = asked("dsx_components")
    offered = of_example(plugins.components())
    assert {type(item) for item in offered} == {Component, Kernel}
    registry = Registry(plugins)
    for item in offered:
        if isinstance(item, Component):
            assert callable(registry.get(item.kind, item.name))
        else:
            assert torch.equal(registry.kernel(item.operation)(torch.ones(2), 3.0), torch.full((2,), 3.0))
    name = next(item.name for item in offered if isinstance(item, Component) and item.kind is OPTIMIZER)
    config = {**CONFIG, "optimizer": {"type": name, "params": {"lr": 0.1}}}
    with dsx.initialize(model=Summed(), config=config, plugins=[plugin_of("dsx_components")])[0] as engine:
        before = engine.full_state_dict()
        engine.backward(engine(torch.ones(2, 3)))
        engine.step()
        assert not torch.equal(engine.full_state_dict()["inner.bias"], before["inner.bias"])


def test_dsx_commands() -> None:
    plugins = asked("dsx_commands")
    (command,) = of_example(plugins.commands())
    result = CliRunner().invoke(build_app(plugins), [command.name])
    assert result.exit_code == 0, result.output
    assert torch.__version__ in result.output
    assert command.summary in CliRunner().invoke(build_app(plugins), ["--help"]).output


def test_dsx_resolve() -> None:
    plugins = asked("dsx_plugin", "dsx_resolve")
    config = {NAME: {"patience": "auto"}}
    for device in ("cpu", "cuda"):
        plan = planned(plugins, config, device=device)
        (resolved,) = (item for item in plan.resolved if item.key == "acme.patience")
        assert plan.config.acme.patience == resolved.value > 0
        assert device in resolved.why
    assert planned(plugins, {NAME: {"patience": 7}}).config.acme.patience == 7


def test_dsx_mesh_axes() -> None:
    plugins = asked("dsx_mesh_axes")
    (axis,) = of_example(plugins.mesh_axes(planned(plugins).config, World(size=4)))
    for ranks, degrees in {4: (2, 2), 3: (1, 3)}.items():
        plan = planned(plugins, ranks=ranks)
        assert (plan.degree(axis.name), plan.degree("data")) == degrees


def test_dsx_claims() -> None:
    plugins = asked("dsx_claims")
    plan = planned(plugins)
    assert plan.states["inference"] == NAME
    assert plan.owners["inference"] == NAME
    assert {item.claim.verb for item in plan.claims if item.plugin == NAME} == {"sets", "needs"}
    assert planned(plugins, ranks=2).states["inference"] == "none"
    with pytest.raises(PlanError, match=r"needs param whole .*\n.*nearest legal: zero_optimization.stage=2"):
        planned(plugins, {"zero_optimization": {"stage": 3}})


def test_dsx_passes(engine: dsx.Engine) -> None:
    (taken,) = of_example(engine.plugins.passes(engine.config))
    assert (taken.name, taken.phase) in [(item.name, item.phase) for item in engine.plan.passes]
    assert [part.p for part in engine.module.modules() if isinstance(part, nn.Dropout)] == [0.0]


def test_dsx_check_plan() -> None:
    plugins = asked("dsx_check_plan")
    with pytest.raises(PlanError, match=r"gradient_accumulation_steps: .*\n.*use at least 2"):
        planned(plugins)
    assert planned(plugins, {"gradient_accumulation_steps": 2}).batch.accumulation == 2


def test_dsx_construct() -> None:
    (context,) = of_example(asked("dsx_construct").construct(planned(asked("dsx_construct"))))
    assert isinstance(context, AbstractContextManager)
    before = torch.get_rng_state()
    with dsx.construct(CONFIG, plugins=[plugin_of("dsx_construct")]):
        torch.rand(3)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_dsx_param_families(engine: dsx.Engine) -> None:
    (family,) = of_example(engine.plugins.param_families(engine.plan, engine.module))
    members = [name for name, param in engine.module.named_parameters() if family.members(name, param)]
    assert members == ["0.bias", "2.bias"]
    buckets = [sorted(bucket.params) for bucket in engine.driver.trainable]  # type: ignore[attr-defined]
    assert sorted(buckets) == [["0.bias", "2.bias"], ["0.weight", "2.weight"]]


def test_dsx_make_driver() -> None:
    torch.manual_seed(3)
    model, reference = Summed(), Summed()
    reference.load_state_dict(model.state_dict())
    with dsx.initialize(model=model, config=CONFIG, plugins=[plugin_of("dsx_make_driver")])[0] as engine:
        assert engine.plan.owners["driver"] == NAME
        assert isinstance(engine.driver, Driver)
        assert all(bucket.policy.shard_state for bucket in engine.driver.trainable)  # type: ignore[attr-defined]
        engine.backward(engine(torch.ones(2, 3)))
        engine.step()
        trained = engine.full_state_dict()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(torch.ones(2, 3)).backward()
    optimizer.step()
    torch.testing.assert_close(trained, dict(reference.state_dict()), rtol=1e-6, atol=1e-7)


def test_dsx_make_loop() -> None:
    config = {**CONFIG, "gradient_accumulation_steps": 2}
    with dsx.initialize(model=Summed(), config=config, plugins=[plugin_of("dsx_make_loop")])[0] as engine:
        assert engine.plan.owners["loop"] == NAME
        before = engine.full_state_dict()
        first, last = torch.zeros(2, 3), torch.ones(2, 3)
        loss = engine.train_batch(iter([first, last]))
        assert engine.global_steps == 1
        # d sum / d bias = 2 rows in each of two micro-batches, averaged, at a rate of 0.1
        moved = before["inner.bias"] - engine.full_state_dict()["inner.bias"]
        torch.testing.assert_close(moved, torch.full((2,), 0.2))
        torch.testing.assert_close(loss, nn.functional.linear(last, before["inner.weight"], before["inner.bias"]).sum())
        assert engine.eval_batch(iter([last])) < loss


def test_dsx_observers(engine: dsx.Engine) -> None:
    (observer,) = (item for item in engine.observers if hasattr(item, "count"))
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 3)).sum())
        engine.step()
    assert observer.count == 3


def test_dsx_checkpoint_parts(engine: dsx.Engine, tmp_path: Any) -> None:
    engine.eval()
    engine.save_checkpoint(tmp_path)
    engine.train()
    engine.load_checkpoint(tmp_path)
    assert not engine.module.training


def test_dsx_report() -> None:
    plugins = asked("dsx_report")
    (row,) = of_example(plugins.report())
    assert int(row.value) > 0
    assert row.value in CliRunner().invoke(build_app(plugins), ["report"]).output


def test_dsx_teardown(engine: dsx.Engine) -> None:
    logger, handler = logging.getLogger(NAME), logging.NullHandler()
    logger.addHandler(handler)
    engine.close()
    assert handler not in logger.handlers


@pytest.mark.parametrize("hook", HOOKS)
def test_each_example_is_asked(hook: str) -> None:
    assert f"test_{hook}" in globals()


@pytest.mark.parametrize("hook", HOOKS)
def test_an_example_stands_by_itself(hook: str) -> None:
    """Beyond `dsx.plugin` and its arguments it knows what it imports: torch, the standard library, the core."""
    example = example_of(hook)
    assert 1 <= len(example.splitlines()) <= 14, "short enough to be read where it stands"
    for node in ast.walk(ast.parse(source_of(hook))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        for name in names:
            top = name.partition(".")[0]
            assert top in ("torch", "dsx") or top in sys.stdlib_module_names, name
