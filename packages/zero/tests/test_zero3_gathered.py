"""Whole parameters outside a step: read, written by one rank, or refused; released ones cannot be mistaken for real."""

from __future__ import annotations

import pytest
import torch
from zero_models import Mlp, apart, engine_of, loss_of, make, rank, samples, settings, train

from dsx.errors import EngineError
from dsx.testing.ranks import run_ranks

STAGES = (0, 1, 2, 3)


def _edits_without_a_writer() -> list[str]:
    messages = []
    for stage in STAGES:
        with engine_of(make("Blocks"), settings(stage)) as engine:
            model = engine.module
            edits = {
                "head.weight": lambda p: p[0].fill_(3.0),
                # All ones to all zeros, and two elements that trade places: no plain sum of bits sees either.
                "blocks.1.norm.weight": lambda p: p.zero_(),
                "blocks.0.linear.bias": lambda p: p.copy_(p.flip(0)),
            }
            for name, edit in edits.items():
                change = edit if rank() == 0 else len
                with pytest.raises(EngineError) as caught, engine.gathered(), torch.no_grad():
                    change(dict(model.named_parameters())[name].data)
                assert name in str(caught.value)
                assert "writer=" in str(caught.value)
                messages.append(str(caught.value))
            with engine.gathered(["head.weight"]):
                assert model.head.weight.isfinite().all(), "reading is no edit"
    return messages


def test_an_edit_without_a_writer_is_an_error_on_all_ranks() -> None:
    """B31: the error names the parameter and the option to pass, on the rank that wrote and on the other."""
    first, second = run_ranks(_edits_without_a_writer)
    assert first == second
    assert len(first) == 3 * len(STAGES)


def _edits_of_a_writer() -> None:
    for precision in ({}, {"bf16": {"enabled": True}}):
        for stage in STAGES:
            with engine_of(make("Lora"), settings(stage, **precision)) as engine:
                train(engine, range(2))
                before = engine.full_state_dict()
                with engine.gathered(["up.weight", "base.weight"], writer=1), torch.no_grad():
                    value = float(rank())
                    engine.module.up.weight[0, 1] = value
                    engine.module.base.weight.data[2].fill_(value)  # frozen, and not through the parameter itself
                after = engine.full_state_dict()
                wanted = {name: tensor.clone() for name, tensor in before.items()}
                wanted["up.weight"][0, 1] = 1.0
                wanted["base.weight"][2] = 1.0
                assert apart(after, wanted) == 0.0, "exactly the edit, and masters elsewhere keep all their bits"
                with engine.gathered():
                    assert bool((engine.module.base.weight[2] == 1.0).all())
                    assert float(engine.module.up.weight[0, 1]) == 1.0
                train(engine, [2])


def test_a_writers_edit_reaches_all_ranks_and_changes_nothing_else() -> None:
    """B31: also of frozen parameters, and in bf16, where masters hold more bits than what was edited."""
    run_ranks(_edits_of_a_writer)


def test_wrong_names_and_writers_are_refused() -> None:
    with engine_of(make("Blocks"), settings(0)) as engine:
        with (
            pytest.raises(EngineError, match=r"head\.wieght.*did you mean 'head\.weight'"),
            engine.gathered(["head.wieght"]),
        ):
            pass
        with pytest.raises(EngineError, match=r"writer rank is 1, wanted one of 0\.\.0"), engine.gathered(writer=1):
            pass


def _released() -> None:
    model = Mlp()
    shapes = {name: tuple(param.shape) for name, param in model.named_parameters()}
    engine = engine_of(model, settings(3))
    train(engine, range(2))
    for name, param in engine.named_parameters():
        assert tuple(param.shape) == shapes[name]
        assert param.isnan().all(), "what is not there cannot be taken for a weight"
    with pytest.raises(RuntimeError, match="single memory location"), torch.no_grad():
        model.first.weight.add_(1.0)
    held = sum(p.untyped_storage().nbytes() for p in engine.module.parameters())
    assert held <= 4 * len(shapes)
    weights = engine.full_state_dict()
    engine.close()
    assert apart({name: param.detach() for name, param in model.named_parameters()}, weights) == 0.0
    inputs, targets = samples(0)
    loss_of(model(inputs), targets).backward()
    assert model.first.weight.grad is not None, "after close it is a model as any other"


def test_released_parameters_have_shape_and_no_values_until_the_engine_closes() -> None:
    run_ranks(_released)


def _written_while_released() -> list[str]:
    messages = []
    for through_data in (False, True):
        engine = engine_of(make("Blocks"), settings(3))
        train(engine, [0])
        weight = engine.module.head.weight
        with torch.no_grad():
            (weight.data if through_data else weight).zero_()
        with pytest.raises(EngineError, match="writer=RANK") as caught:
            train(engine, [1])
        messages.append(str(caught.value))
    return messages


def test_writing_a_released_parameter_is_an_error_and_never_lost_in_silence() -> None:
    direct, through_data = run_ranks(_written_while_released)[0]
    assert "head.weight" in direct
    assert "head.bias" not in direct
    assert "head.weight" in through_data


def _regularised(stage: int) -> dict[str, torch.Tensor]:
    with engine_of(make("Blocks"), settings(stage)) as engine:
        for update in range(2):
            inputs, targets = samples(update)
            loss = loss_of(engine(inputs), targets)
            with engine.gathered():
                loss = loss + 0.1 * sum(param.pow(2).sum() for param in engine.module.parameters())
            engine.backward(loss)
            engine.step()
        return engine.full_state_dict()


def _regularised_everywhere() -> list[float]:
    reference = _regularised(0)
    return [apart(_regularised(stage), reference) for stage in (1, 2, 3)]


def test_a_penalty_on_gathered_weights_goes_backward_after_they_are_gone() -> None:
    assert max(run_ranks(_regularised_everywhere)[0]) < 3e-6


def _interleaved(stage: int) -> dict[str, torch.Tensor]:
    """Evaluation, generation of a sequence, whole reads and sums of losses between any two moments of training."""
    with engine_of(make("Tied"), settings(stage, gradient_accumulation_steps=2)) as engine:
        for update in range(2):
            for micro in range(2):
                inputs, targets = samples(update, micro)
                loss = loss_of(engine(inputs), targets)
                engine.eval()
                with torch.no_grad():
                    for _ in range(4):
                        inputs = torch.tanh(engine(inputs))
                assert bool(inputs.isfinite().all())
                engine.train()
                engine.backward(loss)
                assert all(value.isfinite().all() for value in engine.full_state_dict().values())
                engine.step()
        return engine.full_state_dict()


def _interleaved_everywhere() -> list[float]:
    reference = _interleaved(0)
    return [apart(_interleaved(stage), reference) for stage in (1, 2, 3)]


def test_evaluation_and_generation_between_forward_and_backward_change_nothing() -> None:
    assert max(run_ranks(_interleaved_everywhere)[0]) < 3e-6
