"""Models built as descriptions: the same weights in every stage on any number of ranks, and they learn as any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from zero_models import MODELS, WIDTH, apart, engine_of, rank, samples, settings, train

import dsx
from dsx.errors import CheckpointError
from dsx.testing.ranks import run_ranks

STAGES = range(4)


def described(kind: str, stage: int, **more: object) -> dsx.Engine:
    config = settings(stage, **more)
    torch.manual_seed(rank())  # as careless as users are
    with dsx.construct(config):
        model = MODELS[kind]()
    assert all(param.is_meta for param in model.parameters() if param.numel())
    return engine_of(model, config)


def _weights(stages: tuple[int, ...]) -> dict[str, dict[str, Tensor]]:
    """First weights of every kind of model; equal in each stage."""
    found: dict[str, dict[str, Tensor]] = {}
    for kind in MODELS:
        for stage in stages:
            with described(kind, stage) as engine:
                weights = engine.full_state_dict()
                assert apart(found.setdefault(kind, weights), weights) == 0.0, (kind, stage)
                assert all(value.isfinite().all() for value in weights.values()), kind
    return found


def test_first_weights_depend_on_neither_ranks_nor_stage() -> None:
    stages = {1: (0,), 2: (1, 2, 3), 3: (3,)}
    everyone = [found for size in stages for found in run_ranks(_weights, stages[size], world=size)]
    for found in everyone[1:]:
        for kind, weights in found.items():
            # What a constructor draws itself, outside any recorded call, is the first rank's: the same seed everywhere.
            assert apart(weights, everyone[0][kind]) == 0.0, kind


def _learns() -> dict[str, float]:
    found = {}
    for kind in ("Blocks", "Lora", "Packed", "Recurrent", "Tied", "SameParameter"):
        courses = []
        for stage in (0, 3):
            with described(kind, stage) as engine:
                train(engine, range(3))
                courses.append(engine.full_state_dict())
        found[kind] = apart(*courses)
    return found


def test_described_models_learn_the_same_in_every_stage() -> None:
    """B36: three-dimensional packed weights and einsum among them."""
    assert max(run_ranks(_learns)[0].values()) < 3e-6


def _packed(root: str, size: int) -> None:
    if size == 2:
        with described("Packed", 3) as engine:
            train(engine, range(2))
            engine.save_checkpoint(root)
            weights = engine.full_state_dict()
        if rank() == 0:
            torch.save(weights, Path(root) / "whole.pt")
        return
    with described("Packed", 3, seed=99) as engine:
        saved = torch.load(Path(root) / "whole.pt", weights_only=True)
        assert apart(engine.full_state_dict(), saved) > 0.1
        engine.load_checkpoint(root)
        assert apart(engine.full_state_dict(), saved) == 0.0
        train(engine, [2])


def test_packed_parameters_load_by_name_at_another_number_of_ranks(tmp_path: Path) -> None:
    """B36: written by 2 ranks, read by 4, with no missing keys."""
    run_ranks(_packed, str(tmp_path), 2, world=2)
    run_ranks(_packed, str(tmp_path), 4, world=4)


class Careless(nn.Module):
    """Frozen weights and buffers that each rank draws for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.register_buffer("mask", torch.rand(WIDTH) > 0.5)
        self.register_buffer("table", torch.randn(3, WIDTH).t())
        self.register_buffer("passing", torch.randn(WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(torch.where(self.mask, self.trained(x), self.passing))


def _careless() -> list[dict[str, Tensor]]:
    rows = []
    for stage in STAGES:
        for deferred in (False, True):
            torch.manual_seed(rank())
            config = settings(stage)
            if deferred:
                with dsx.construct(config):
                    model = Careless()
            else:
                model = Careless()
            with engine_of(model, config) as engine:
                train(engine, [0])
                rows.append({**engine.full_state_dict(), "passing": model.passing.clone()})
    return rows


def test_ranks_begin_with_the_first_ones_weights_and_buffers() -> None:
    """As torch's DDP does: trained, frozen, persistent or not; whatever seed each rank has set."""
    first, second, third = run_ranks(_careless, world=3)
    for mine, *others in zip(first, second, third, strict=True):
        assert [apart(mine, other) for other in others] == [0.0, 0.0]


def _two_engines() -> None:
    teacher_config, config = settings(3), settings(2)
    with dsx.construct(config):
        student = MODELS["Blocks"]()
        with dsx.construct(teacher_config):
            teacher = MODELS["Tied"]()
        teaching = engine_of(teacher, teacher_config)
    plain = MODELS["Mlp"]()
    assert all(param.device.type == "cpu" and not param.isnan().any() for param in plain.parameters())
    with teaching, engine_of(student, config) as learning:
        for update in range(2):
            inputs, _ = samples(update)
            with torch.no_grad():
                targets = teaching(inputs)
            learning.backward(((learning(inputs) - targets) ** 2).mean())
            learning.step()
            train(teaching, [update])
            assert plain(inputs).isfinite().all()
        assert {tuple(p.shape) for p in plain.parameters()} == {tuple(p.shape) for p in MODELS["Mlp"]().parameters()}
        names = {name for name, _ in teaching.named_parameters()}
        assert teaching.full_state_dict().keys() == names
        assert learning.full_state_dict().keys() == {name for name, _ in learning.named_parameters()}


def test_two_engines_and_a_plain_model_live_in_one_process() -> None:
    """B90: one built inside the other's context, in different stages, both trained; the plain one is whole."""
    run_ranks(_two_engines)


def test_a_load_under_a_wrong_tag_says_what_is_there(tmp_path: Path) -> None:
    with described("Blocks", 3) as engine:
        engine.save_checkpoint(tmp_path, "here")
        with pytest.raises(CheckpointError, match=r"no checkpoint 'there'.*here"):
            engine.load_checkpoint(tmp_path, "there")
