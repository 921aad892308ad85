"""What the engine says when it is used wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dsx
from dsx.engine.engine import Engine
from dsx.errors import ConfigError, DataError, DsxError, EngineError, PlanError
from dsx.testing.awkward import MICRO, Awkward, awkward_batch

SGD = {"type": "SGD", "params": {"lr": 0.1}}


def settings(**more: Any) -> dict[str, Any]:
    chosen = {"train_micro_batch_size_per_gpu": MICRO, "optimizer": SGD, **more}
    return {key: value for key, value in chosen.items() if value is not None}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with dsx.initialize(model=Awkward(), config=settings(gradient_accumulation_steps=2))[0] as made:
        yield made


@pytest.mark.parametrize(
    "use",
    [
        lambda engine: engine(*awkward_batch(0, 0, 0)),
        lambda engine: engine.backward(torch.ones((), requires_grad=True)),
        lambda engine: engine.step(),
        lambda engine: engine.train_batch(iter([awkward_batch(0, 0, 0)])),
        lambda engine: engine.clip(1.0),
        lambda engine: engine.gradient("scale"),
        lambda engine: engine.full_state_dict(),
        lambda engine: engine.save_checkpoint("nowhere"),
        lambda engine: engine.load_checkpoint("nowhere"),
        lambda engine: engine.zero_grad(),
    ],
)
def test_a_closed_engine_says_so(engine: Engine, use: Callable[[Engine], object]) -> None:
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        use(engine)


def test_data_that_ends_within_an_update(engine: Engine) -> None:
    with pytest.raises(DataError, match="takes 2 micro-batches"):
        engine.train_batch(iter([awkward_batch(0, 0, 0)]))


def test_data_that_is_no_iterator(engine: Engine) -> None:
    with pytest.raises(EngineError, match=r"list, wanted an iterator.*iter\(loader\)"):
        engine.train_batch([awkward_batch(0, 0, 0)])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="without data"):
        engine.train_batch()


class Outputs(nn.Module):
    """Gives what it was told to give."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.give = give

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.give(self.layer(x))


@pytest.mark.parametrize(
    ("give", "found"),
    [
        (lambda out: out, r"\(3, 2\)"),
        (lambda out: {"logits": out}, "NoneType"),
        (lambda out: (), "tuple|NoneType"),
        (lambda out: "words", "str|NoneType"),
    ],
)
def test_train_batch_needs_a_scalar_loss(give: Callable[[Tensor], Any], found: str) -> None:
    with (
        dsx.initialize(model=Outputs(give), config=settings())[0] as engine,
        pytest.raises(EngineError, match=found),
    ):
        engine.train_batch(iter([awkward_batch(0, 0, 0)]))


@pytest.mark.parametrize(
    "give",
    [
        lambda out: out.mean(),
        lambda out: {"loss": out.mean(), "logits": out},
        lambda out: (out.mean(), out),
        lambda out: out.mean().reshape(1),
    ],
)
def test_train_batch_finds_the_loss(give: Callable[[Tensor], Any]) -> None:
    with dsx.initialize(model=Outputs(give), config=settings())[0] as engine:
        loss = engine.train_batch(iter([awkward_batch(0, 0, 0)]))
        assert loss.shape == ()
        assert engine.was_step_applied


def test_backward_of_a_loss_that_is_no_scalar(engine: Engine) -> None:
    outputs = engine.module.predict(awkward_batch(0, 0, 0)[0])
    with pytest.raises(EngineError, match=r"shape \(3, 2\).*gradient="):
        engine.backward(outputs)


def test_backward_of_a_loss_without_a_graph(engine: Engine) -> None:
    with pytest.raises(EngineError, match="requires no gradient|no graph"):
        engine.backward(torch.ones(()))


def test_an_engine_without_an_optimizer_evaluates_and_refuses_to_step() -> None:
    with dsx.initialize(model=Awkward(), config=settings(optimizer=None))[0] as engine:
        assert engine.optimizer is None
        assert engine.get_lr() == []
        assert engine.eval_batch(iter([awkward_batch(0, 0, 0)])).isfinite()
        engine.backward(engine(*awkward_batch(0, 0, 0)))
        with pytest.raises(EngineError, match="no optimizer"):
            engine.step()


def test_a_schedule_without_an_optimizer() -> None:
    with pytest.raises(ConfigError, match="no optimizer"):
        dsx.initialize(model=Awkward(), config=settings(optimizer=None, scheduler={"type": "WarmupLR"}))


def test_an_optimizer_over_foreign_parameters() -> None:
    stranger = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"\(2, 3\).*not a parameter of the model"):
        dsx.initialize(model=Awkward(), optimizer=stranger, config=settings(optimizer=None))


def test_a_parameter_in_two_groups() -> None:
    model = Awkward()
    groups = [{"params": [model.scale]}, {"params": [model.stack, model.scale]}]
    with pytest.raises(ConfigError, match="'scale' stands in groups 0 and 1"):
        dsx.initialize(model=model, model_parameters=groups, config=settings())


def test_an_optimizer_that_has_taken_steps() -> None:
    model = Awkward()
    used = torch.optim.Adam(model.parameters())
    model(*awkward_batch(0, 0, 0)).backward()
    used.step()
    with pytest.raises(EngineError, match="already taken steps"):
        dsx.initialize(model=model, optimizer=used, config=settings(optimizer=None))


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"config": settings()}, ConfigError, "needs a model"),
        ({"model": Awkward()}, ConfigError, "needs a configuration"),
        ({"model": Awkward(), "config": settings(), "config_params": settings()}, ConfigError, "both config="),
        ({"model": Awkward(), "config": settings(), "mpu": object()}, ConfigError, "mpu="),
        ({"model": Awkward(), "config": settings(optimizer={"type": "Adem"})}, DsxError, "(?i)did you mean"),
        ({"model": Awkward(), "config": settings(train_batch_size=7)}, PlanError, "7"),
        ({"model": Awkward(), "config": settings(fp16={"enabled": True}, bf16={"enabled": True})}, DsxError, "both"),
    ],
)
def test_what_cannot_begin(arguments: dict[str, Any], kind: type[DsxError], words: str) -> None:
    with pytest.raises(kind, match=words):
        dsx.initialize(**arguments)


def differing() -> str:
    rank = torch.distributed.get_rank()
    try:
        dsx.initialize(model=Awkward(), config=settings(gradient_clipping=1.0 + (rank == 1)))
    except PlanError as error:
        return str(error)
    return "nothing was raised"


def other_models() -> str:
    model = Awkward()
    if torch.distributed.get_rank() == 2:
        model.leave = nn.Linear(9, 2)
    try:
        dsx.initialize(model=model, config=settings())
    except PlanError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("function", "rank", "words"),
    [(differing, "rank 1", "gradient_clipping"), (other_models, "rank 2", "'leave.weight' is (2, 9), group 0 there")],
)
def test_ranks_that_differ_are_named_with_what_differs(
    function: Callable[[], str], rank: str, words: str, ranks: Callable[..., list[Any]]
) -> None:
    for message in ranks(function, world=3, deadline=30.0):
        assert rank in message
        assert words in message


def test_an_optimizer_that_needs_a_closure() -> None:
    with pytest.raises(EngineError, match="closure"):
        dsx.initialize(model=Awkward(), config=settings(optimizer={"type": "LBFGS", "params": {}}))


def test_a_scheduler_that_is_none() -> None:
    with pytest.raises(EngineError, match="step"):
        dsx.initialize(model=Awkward(), lr_scheduler=[1, 2], config=settings())
