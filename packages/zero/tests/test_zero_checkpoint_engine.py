"""Saving and loading through engines of every stage: legal at any moment, exact, and never half done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_zero_checkpoint_reshard import Odd, config_of, groups_of, odd, tensors_in, updates
from torch import nn
from zero_models import apart, engine_of, loss_of, make, rank, samples, settings, train

from dsx.checkpoint.consolidate import export, read_full
from dsx.errors import CheckpointError
from dsx.testing.ranks import run_ranks

STAGES = range(4)


def state_page(root: Path, tag: str) -> dict[str, Any]:
    return json.loads((root / tag / "state.json").read_text())


def _save_and_load_without_a_step(root: str) -> None:
    for stage in STAGES:
        place = Path(root) / str(stage)
        model = odd()
        with engine_of(model, config_of(stage, "adam"), model_parameters=groups_of(model)) as engine:
            engine.save_checkpoint(place, "begin")  # before any step
            updates(engine, range(2))
            engine.save_checkpoint(place, "one")
            engine.load_checkpoint(place, "one")  # right after the save
            updates(engine, [2])
            after = engine.full_state_dict()
        other = odd(seed=3)
        with engine_of(other, config_of(stage, "adam"), model_parameters=groups_of(other)) as engine:
            engine.load_checkpoint(place, "one")
            engine.save_checkpoint(place, "two")  # right after the load
            assert apart(tensors_in(place, "one"), tensors_in(place, "two")) == 0.0
            assert state_page(place, "one") == state_page(place, "two")
            engine.load_checkpoint(place, "begin")
            assert engine.global_steps == 0
            assert apart(engine.full_state_dict(), {**odd().state_dict()}) == 0.0
            engine.load_checkpoint(place, "two")
            updates(engine, [2])
            assert apart(engine.full_state_dict(), after) == 0.0


def test_saving_after_a_load_and_loading_after_a_save_need_no_step(tmp_path: Path) -> None:
    """B37: files of save, load, save hold equal tensors and data; a run goes on to the bit."""
    run_ranks(_save_and_load_without_a_step, str(tmp_path))


def _load_into_a_used_engine(root: str) -> list[float]:
    gaps = []
    for stage in (1, 3):
        place = Path(root) / str(stage)
        config = {**config_of(stage, "adam"), "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}}}
        model = odd()
        with engine_of(model, config, model_parameters=groups_of(model)) as engine:
            updates(engine, range(2))
            engine.save_checkpoint(place, "two")
            rate = engine.get_lr()
            updates(engine, range(2, 5))
            reference = engine.full_state_dict()
            for turn in range(2):
                updates(engine, range(7, 10))
                engine.load_checkpoint(place, "two")
                assert engine.get_lr() == rate
                assert engine.global_steps == 2
                engine.save_checkpoint(place, f"turn-{turn}")
                assert apart(tensors_in(place, f"turn-{turn}"), tensors_in(place, "two")) == 0.0
                assert state_page(place, f"turn-{turn}") == state_page(place, "two")
                updates(engine, range(2, 5))
                gaps.append(
                    apart({**engine.full_state_dict(), "seen": torch.zeros(())}, {**reference, "seen": torch.zeros(())})
                )
    return gaps


def test_loading_into_a_used_engine_is_as_good_as_into_a_fresh_one(tmp_path: Path) -> None:
    """B38: weights, moments, counters and rates are the saved ones, and what follows is the same, again and again."""
    assert run_ranks(_load_into_a_used_engine, str(tmp_path))[0] == [0.0] * 4


def _mid_accumulation(root: str, stage: int, saves: bool) -> tuple[dict[str, torch.Tensor], int]:
    config = settings(stage, gradient_accumulation_steps=3)
    with engine_of(make("Blocks"), config) as engine:
        train(engine, [0])
        for micro in range(3):
            inputs, targets = samples(1, micro)
            if saves:
                engine.save_checkpoint(root, f"{micro} before forward")
            loss = loss_of(engine(inputs), targets)
            if saves:
                engine.save_checkpoint(root, f"{micro} before backward")
            engine.backward(loss)
            if saves:
                engine.save_checkpoint(root, f"{micro} before step")
            engine.step()
        return engine.full_state_dict(), engine.micro_steps


def _save_anywhere(root: str) -> None:
    for stage in STAGES:
        place = Path(root) / str(stage)
        undisturbed, steps = _mid_accumulation(str(place), stage, saves=False)
        saved, _ = _mid_accumulation(str(place), stage, saves=True)
        assert apart(saved, undisturbed) == 0.0, "saving changes nothing in the live engine"
        # Loaded from the middle, an update begins anew: the partial gradient is not in the file.
        with engine_of(make("Blocks", seed=1), settings(stage, gradient_accumulation_steps=3)) as engine:
            engine.load_checkpoint(place, "1 before step")
            assert (engine.micro_steps, engine.global_steps) == (3, 1)
            assert engine.global_samples == 3 * 4 * 2
            train(engine, [1])
            assert engine.micro_steps == steps
            assert apart(engine.full_state_dict(), undisturbed) == 0.0


def test_saving_in_the_middle_of_an_update_changes_nothing(tmp_path: Path) -> None:
    """B39: at any moment of an accumulation, in every stage; the gradients so far are dropped by a load."""
    run_ranks(_save_anywhere, str(tmp_path))


def _safe(root: str) -> None:
    model = odd()
    config = {**config_of(3, "adam"), "bf16": {"enabled": True}}
    with engine_of(model, config, model_parameters=groups_of(model)) as engine:
        updates(engine, range(3))
        engine.save_checkpoint(root)
        full = engine.full_state_dict()
        if rank() == 0:
            torch.save(full, Path(root) / "whole.pt")


def test_whole_state_is_read_by_the_safe_loader_and_has_every_name(tmp_path: Path) -> None:
    """B41, B42, B43, B44: frozen, tied, odd and empty weights and buffers, fp32, readable with torch alone."""
    run_ranks(_safe, str(tmp_path), world=3)
    live = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert live["tied.weight"].equal(live["last.weight"])
    assert not live["seven"].equal(live["last.weight"][0]), "nothing unrelated is tied"
    assert {value.dtype for value in live.values()} == {torch.float32, torch.int64}
    torch.nn.Module.load_state_dict(Odd(), live, strict=True)
    assert apart(read_full(tmp_path), live) == 0.0
    for suffix in (".pt", ".safetensors"):
        path = export(tmp_path, tmp_path / f"weights{suffix}")
        if suffix == ".pt":
            assert apart(torch.load(path, weights_only=True), live) == 0.0
    original = odd()
    assert apart(
        {"w": live["frozen.weight"]}, {"w": original.frozen.weight.detach().to(torch.bfloat16)}
    ) == 0.0  # fmt: skip


def _frozen(root: str) -> None:
    for stage in STAGES:
        with engine_of(make("Lora"), settings(stage)) as engine:
            train(engine, range(2))
            engine.save_checkpoint(Path(root) / str(stage))
            engine.save_checkpoint(Path(root) / f"{stage} without", exclude_frozen_parameters=True)
            saved = engine.full_state_dict()
        with engine_of(make("Lora", seed=9), settings(3 - stage)) as engine:
            own = engine.full_state_dict()
            with pytest.raises(CheckpointError, match=r"missing.*base\.weight"):
                engine.load_checkpoint(Path(root) / f"{stage} without")
            assert apart(engine.full_state_dict(), own) == 0.0
            engine.load_checkpoint(Path(root) / f"{stage} without", load_module_strict=False)
            mixed = engine.full_state_dict()
            assert mixed["up.weight"].equal(saved["up.weight"])
            assert mixed["base.weight"].equal(own["base.weight"])
            engine.load_checkpoint(Path(root) / str(stage))
            assert apart(engine.full_state_dict(), saved) == 0.0
            train(engine, [2])


def test_frozen_weights_are_kept_and_can_be_left_out(tmp_path: Path) -> None:
    """B42: they come back instead of the new seed's; left out, the load says so and changes nothing."""
    run_ranks(_frozen, str(tmp_path))


def _weights_alone(root: str) -> None:
    bf16 = {"bf16": {"enabled": True}}
    for stage in STAGES:
        place = Path(root) / str(stage)
        with engine_of(make("Blocks"), settings(stage, **bf16)) as engine:
            train(engine, range(3))
            engine.save_checkpoint(place)
            saved = engine.full_state_dict()
        for options in ({"load_module_only": True}, {"load_optimizer_states": False}):
            still = settings(stage, **bf16, optimizer={"type": "AdamW", "params": {"lr": 0.0}})
            with engine_of(make("Blocks", seed=4), still) as engine:
                engine.load_checkpoint(place, **options)
                assert engine.global_steps == (0 if "load_module_only" in options else 3)
                assert apart(engine.full_state_dict(), saved) == 0.0, "masters are the loaded weights"
                assert engine.get_lr() == [0.0]
                train(engine, [3])
                assert apart(engine.full_state_dict(), saved) == 0.0, "no stale master came back"
                with engine.gathered():
                    shown = {name: param.detach().clone() for name, param in engine.named_parameters()}
                assert apart(shown, {name: value.bfloat16() for name, value in saved.items()}) == 0.0


def test_weights_alone_leave_no_stale_master(tmp_path: Path) -> None:
    """B46: after a load without optimizer states and a step with rate 0, weights and masters are the loaded ones."""
    run_ranks(_weights_alone, str(tmp_path))


class Grown(Odd):
    """Another model: a parameter more, one of another name, one of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.zeros(2))
        self.fourteen = nn.Parameter(torch.randn(13))
        del self.thirteen
        self.seven = nn.Parameter(torch.randn(8))


def _another_model(root: str) -> list[str]:
    model = odd()
    with engine_of(model, config_of(2, "adam"), model_parameters=groups_of(model)) as engine:
        updates(engine, range(2))
        engine.save_checkpoint(root)
    messages = []
    for stage in STAGES:
        other = Grown()
        with engine_of(other, config_of(stage, "adam")) as engine:
            before = engine.full_state_dict()
            with pytest.raises(CheckpointError) as caught:
                engine.load_checkpoint(root)
            messages.append(str(caught.value))
            assert apart(engine.full_state_dict(), before) == 0.0
            assert engine.global_steps == 0
    return messages


def test_a_checkpoint_of_another_model_is_refused_by_names_and_changes_nothing(tmp_path: Path) -> None:
    for messages in run_ranks(_another_model, str(tmp_path)):
        for message in messages:
            assert "missing (in this model, not in the checkpoint)" in message
            assert "model/weights/more" in message
            assert "model/weights/fourteen" in message
            assert "unexpected (in the checkpoint, not in this model)" in message
            assert "model/weights/thirteen" in message
            assert "model/weights/seven is (7,) float32 in the checkpoint, (8,) float32 in this model" in message


def _other_groups(root: str) -> None:
    model = odd()
    with engine_of(model, config_of(1, "adam"), model_parameters=groups_of(model)) as engine:
        updates(engine, range(2))
        engine.save_checkpoint(root)
    with engine_of(odd(seed=2), config_of(1, "adam")) as engine:
        before = engine.full_state_dict()
        with pytest.raises(CheckpointError, match="3 parameter groups.*1"):
            engine.load_checkpoint(root)
        assert apart(engine.full_state_dict(), before) == 0.0
        assert engine.global_steps == 0
        engine.load_checkpoint(root, load_optimizer_states=False)
        assert engine.global_steps == 2


def test_a_checkpoint_of_other_parameter_groups_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run_ranks(_other_groups, str(tmp_path))


def _group_settings(root: str) -> None:
    model = odd()
    with engine_of(model, config_of(3, "adam"), model_parameters=groups_of(model)) as engine:
        engine.optimizer.param_groups[1]["lr"] = 0.125
        engine.optimizer.param_groups[2]["betas"] = (0.5, 0.75)
        engine.save_checkpoint(root)
    model = odd()
    with engine_of(model, config_of(0, "adam"), model_parameters=groups_of(model)) as engine:
        engine.load_checkpoint(root)
        groups = engine.optimizer.param_groups
        assert [group["lr"] for group in groups] == [3e-2, 0.125, 1e-2]
        assert [group["weight_decay"] for group in groups][1] == 0.1
        assert tuple(groups[2]["betas"]) == (0.5, 0.75)
        updates(engine, range(1))


def test_settings_of_groups_come_back(tmp_path: Path) -> None:
    """B25: rates, decay and betas of each group, set by hand, survive."""
    run_ranks(_group_settings, str(tmp_path))


def _torn(root: str) -> None:
    with engine_of(make("Blocks"), settings(3)) as engine:
        engine.save_checkpoint(root, "good")
        train(engine, [0])
        engine.save_checkpoint(root, "torn")
        if rank() == 0:
            largest = max((Path(root) / "torn").iterdir(), key=lambda path: path.stat().st_size)
            data = bytearray(largest.read_bytes())
            data[-1] ^= 1
            largest.write_bytes(bytes(data))
        engine.data_group.barrier(site="torn")
        train(engine, [1])
        before = engine.full_state_dict()
        with pytest.raises(CheckpointError, match="torn.*load it with tag='good'"):
            engine.load_checkpoint(root)
        assert apart(engine.full_state_dict(), before) == 0.0
        assert engine.global_steps == 2
        train(engine, [2])
        engine.load_checkpoint(root, "good")
        assert engine.global_steps == 0


def test_a_torn_checkpoint_is_refused_with_the_last_good_one_named(tmp_path: Path) -> None:
    run_ranks(_torn, str(tmp_path))
