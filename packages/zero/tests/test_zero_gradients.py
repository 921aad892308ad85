"""Gradients add up, are reduced, read, written and clipped alike in every stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_helpers import STAGES, adamw, config, engine_of

from dsx.engine.engine import Engine
from dsx.errors import EngineError
from dsx.testing.awkward import Awkward, awkward_batch
from dsx.testing.parity import plain, steered, weights_apart

Ranks = Callable[..., list[Any]]
SGD = {"type": "SGD", "params": {"lr": 0.1}}


class Twin(nn.Module):
    """One encoder for two inputs; the loss has a term for each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encoder = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return self.encoder(one).float().square().mean() + self.encoder(two).float().abs().mean()


def twin_batch(update: int, turn: int, rank: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(100 * update + 10 * turn + rank)
    return torch.randn(2, 5, generator=dice), torch.randn(4, 5, generator=dice)


def gradients_of(engine: Engine) -> dict[str, Tensor | None]:
    return {name: engine.gradient(name) for name, _ in engine.module.named_parameters()}


def used_twice(bf16: bool) -> list[float]:
    dtype = torch.bfloat16 if bf16 else torch.float32
    model = Twin().to(dtype)
    for turn, rank in itertools.product(range(2), range(2)):
        (model(*(value.to(dtype) for value in twin_batch(0, turn, rank))) / 4).backward()
    expected = {name: param.grad for name, param in model.named_parameters()}
    gaps = []
    for stage in STAGES:
        settings = config(stage, gradient_accumulation_steps=2, bf16={"enabled": bf16})
        with engine_of(Twin(), settings) as engine:
            for turn in range(2):
                engine.backward(engine(*twin_batch(0, turn, engine.data_group.rank)))
                if turn == 0:
                    engine.step()
            gaps.append(weights_apart(gradients_of(engine), expected))
    return gaps


@pytest.mark.parametrize(("bf16", "near"), [(False, 1e-7), (True, 4e-3)])
def test_a_module_used_twice_adds_both_contributions(bf16: bool, near: float, ranks: Ranks) -> None:
    """B19: a shared encoder applied to two inputs, accumulated over two micro-batches, in every stage."""
    for gaps in ranks(used_twice, bf16):
        assert max(gaps) <= near


class TwoHeads(nn.Module):
    """Uses one of its heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Linear(5, 7)
        self.heads = nn.ModuleList([nn.Linear(7, 2), nn.Linear(7, 2)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        out: Tensor = self.heads[head](torch.tanh(self.body(x))).square().mean()
        return out


def head_batch(update: int, turn: int, rank: int) -> tuple[Tensor, int]:
    return twin_batch(update, turn, rank)[0], update % 2


def alternate(world: int) -> list[tuple[float, bool]]:
    """By stage: (distance to plain PyTorch, whether the idle head was left alone at each update)."""
    model = TwoHeads()
    expected = plain(model, head_batch, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), updates=4, world=world)
    found = []
    adam = {"type": "Adam", "params": {"lr": 0.01, "adam_w_mode": False}}
    for stage in STAGES:
        with engine_of(TwoHeads(), config(stage, optimizer=adam)) as engine:
            alone = True
            before = snapshot(engine)
            for update in range(4):
                engine.backward(engine(*head_batch(update, 0, engine.data_group.rank)))
                engine.step()
                norm = engine.get_global_grad_norm()
                alone = alone and norm is not None and abs(norm - expected.norms[update]) <= 1e-6
                after = snapshot(engine)
                idle = [name for name in before if f"heads.{1 - update % 2}" in name]
                alone = alone and len(idle) >= 2 and all(torch.equal(before[name], after[name]) for name in idle)
                busy = [name for name in after if f"heads.{update % 2}" in name]
                alone = alone and not any(torch.equal(before[n], after[n]) for n in busy if n in before)
                before = after
            found.append((weights_apart(engine.full_state_dict(), expected.weights), alone))
    return found


def snapshot(engine: Engine) -> dict[str, Tensor]:
    """Whole weights, and this rank's parts of moments and counters, by name."""
    found = {name: value.clone() for name, value in engine.full_state_dict().items()}
    for piece in engine.driver.pieces:
        for key, value in engine.optimizer.state.get(piece.master, {}).items():
            found[f"{key} of {piece.name}"] = torch.as_tensor(value).clone()
    for name, steps in engine.driver.steps.items():
        found[f"steps of {name}"] = torch.tensor(steps)
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_a_head_that_is_not_used_is_left_alone(world: int, ranks: Ranks) -> None:
    """B20: weights, moments and step counts of the idle head do not change at that update, as with grad None; what it
    had before does not count in the norm."""
    for found in ranks(alternate, world, world=world):
        assert all(gap <= 1e-6 for gap, _ in found), found
        assert all(alone for _, alone in found), found


def several_backwards(by_loss: bool) -> list[float]:
    """Three losses, three backwards, one step: sums, not means."""
    model = Awkward()
    for part, rank in itertools.product(range(3), range(2)):
        (model(*awkward_batch(part, 0, rank)) * (part + 1) / 2).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    gaps = []
    for stage, together in itertools.product(STAGES, (False, True)):
        with engine_of(Awkward(), config(stage, optimizer=SGD)) as engine:
            rank = engine.data_group.rank
            losses: Any = (engine(*awkward_batch(part, 0, rank)) * (part + 1) for part in range(3))
            for loss in list(losses) if together else losses:
                if by_loss:
                    loss.backward()
                else:
                    engine.backward(loss)
            engine.step()
            gaps.append(weights_apart(engine.full_state_dict(), model.state_dict()))
    return gaps


@pytest.mark.parametrize("by_loss", [False, True])
def test_several_backwards_before_a_step_add_up(by_loss: bool, ranks: Ranks) -> None:
    """B23: the update uses the sum of three losses' gradients in every stage, forwards taken in turn or all first."""
    for gaps in ranks(several_backwards, by_loss):
        assert max(gaps) <= 1e-6, gaps


def one_graph_twice() -> list[float]:
    """Two losses from one forward: the first backward keeps the graph."""
    model = Awkward()
    for rank in range(2):
        outputs = model.predict(awkward_batch(0, 0, rank)[0])
        ((outputs.square().mean() + outputs.abs().mean()) / 2).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    gaps = []
    for stage in STAGES:
        held = Outputs()
        with engine_of(held, config(stage, optimizer=SGD)) as engine:
            outputs = engine(awkward_batch(0, 0, engine.data_group.rank)[0])
            engine.backward(outputs.square().mean(), retain_graph=True)
            engine.backward(outputs.abs().mean())
            engine.step()
            weights = {name.removeprefix("inner."): value for name, value in engine.full_state_dict().items()}
            gaps.append(weights_apart(weights, model.state_dict()))
    return gaps


class Outputs(nn.Module):
    """Gives the outputs, not the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Awkward()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.predict(x)


def test_two_losses_of_one_forward_add_up(ranks: Ranks) -> None:
    for gaps in ranks(one_graph_twice):
        assert max(gaps) <= 1e-6, gaps


def backward_of_many_values() -> list[float]:
    """Outputs that are no scalar, with the gradient to begin from."""
    seeds = [torch.linspace(-1, 1, 6).view(3, 2) * (rank + 1) for rank in range(2)]
    model = Awkward()
    for rank in range(2):
        model.predict(awkward_batch(0, 0, rank)[0]).backward(seeds[rank] / 2)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    gaps = []
    for stage, by_loss in itertools.product(STAGES, (False, True)):
        with engine_of(Outputs(), config(stage, optimizer=SGD)) as engine:
            rank = engine.data_group.rank
            outputs = engine(awkward_batch(0, 0, rank)[0])
            if by_loss:
                outputs.backward(seeds[rank])
            else:
                engine.backward(outputs, gradient=seeds[rank])
            engine.step()
            weights = {name.removeprefix("inner."): value for name, value in engine.full_state_dict().items()}
            gaps.append(weights_apart(weights, model.state_dict()))
    return gaps


def test_backward_from_outputs_that_are_no_scalar(ranks: Ranks) -> None:
    for gaps in ranks(backward_of_many_values):
        assert max(gaps) <= 1e-6, gaps


def held_back(precision: str) -> list[float]:
    settings = (
        {"gradient_accumulation_steps": 4, precision: {"enabled": True}}
        if precision
        else {"gradient_accumulation_steps": 4}
    )
    gaps = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, **settings)) as engine:
            synced = steered(engine, awkward_batch, updates=2)
        with engine_of(Awkward(), config(stage, **settings)) as engine:
            for update in range(2):
                for turn in range(4):
                    batch = awkward_batch(update, turn, engine.data_group.rank)
                    if turn < 3:
                        with engine.no_sync():
                            calls = dict(engine.data_group.journal.counts)
                            engine.backward(engine(*batch))
                            reduced = engine.data_group.journal.counts["reduce gradients"]
                            assert reduced == calls.get("reduce gradients", 0)
                        engine.step()
                    else:
                        engine.backward(engine(*batch))
                        engine.step()
            gaps.append(weights_apart(engine.full_state_dict(), synced.weights))
    return gaps


@pytest.mark.parametrize("precision", ["", "bf16"])
def test_no_sync_works_in_every_stage_and_moves_no_number(precision: str, ranks: Ranks) -> None:
    """B24: three of four micro-steps within no_sync, which reduces nothing, give the result of four without."""
    for gaps in ranks(held_back, precision):
        assert max(gaps) <= (2e-3 if precision else 1e-6), gaps


def step_within() -> list[str]:
    messages = []
    for stage in (0, 2):
        with engine_of(Awkward(), config(stage)) as engine:
            with engine.no_sync():
                engine.backward(engine(*awkward_batch(0, 0, engine.data_group.rank)))
                try:
                    engine.step()
                except EngineError as error:
                    messages.append(str(error))
            engine.step()
            assert engine.was_step_applied
    return messages


def test_a_step_within_no_sync_is_an_error_that_loses_nothing(ranks: Ranks) -> None:
    for messages in ranks(step_within):
        assert len(messages) == 2
        assert all("no_sync" in message and "leave the context" in message for message in messages)


class Unequal(nn.Module):
    """A large and a tiny parameter, and one beside them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.large = nn.Parameter(torch.randn(31, 5))
        self.tiny = nn.Parameter(torch.randn(1))
        self.plain = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.large.T).sum() * self.tiny + self.plain.square().sum()).square().mean() / 100


def unequal_batch(update: int, turn: int, rank: int) -> tuple[Tensor]:
    return (torch.randn(2, 5, generator=torch.Generator().manual_seed(10 * update + rank)),)


def unequal_groups(model: Unequal) -> list[dict[str, Any]]:
    return [
        {"params": [model.large], "lr": 0.1, "weight_decay": 0.0},
        {"params": [], "lr": 7.0},
        {"params": [model.tiny, model.plain], "lr": 0.01, "weight_decay": 0.1},
    ]


def grouped(folder: str) -> list[tuple[float, float, list[Any], list[Any]]]:
    """By stage: (distance of weights, of gradients to those without groups, settings saved, settings after loading)."""
    reference = Unequal()
    groups = [group for group in unequal_groups(reference) if group["params"]]
    expected = plain(reference, unequal_batch, optimizer=torch.optim.SGD(groups, lr=1.0), updates=3, world=2)
    sgd = {"type": "SGD", "params": {"lr": 1.0}}
    found = []
    for stage in STAGES:
        with engine_of(Unequal(), config(stage, optimizer=sgd)) as engine:
            engine.backward(engine(*unequal_batch(0, 0, engine.data_group.rank)))
            together = gradients_of(engine)
        model = Unequal()
        with engine_of(model, config(stage, optimizer=sgd), model_parameters=unequal_groups(model)) as engine:
            engine.backward(engine(*unequal_batch(0, 0, engine.data_group.rank)))
            apart = weights_apart(gradients_of(engine), together)
            engine.zero_grad()
            course = steered(engine, unequal_batch, updates=3)
            gap = weights_apart(course.weights, expected.weights)
            engine.optimizer.param_groups[0]["lr"] = 0.05
            engine.save_checkpoint(f"{folder}/{stage}", tag="t")
            saved = settings_of(engine)
        model = Unequal()
        with engine_of(model, config(stage, optimizer=sgd), model_parameters=unequal_groups(model)) as engine:
            engine.load_checkpoint(f"{folder}/{stage}", tag="t")
            found.append((gap, apart, saved, settings_of(engine)))
    return found


def settings_of(engine: Engine) -> list[Any]:
    return [(group["lr"], group["weight_decay"], len(group["params"])) for group in engine.optimizer.param_groups]


def test_groups_keep_their_own_rate_and_decay(tmp_path: Any, ranks: Ranks) -> None:
    """B25: each weight moves by its group's rate and decay, gradients are those without groups, one group is empty,
    and the settings survive saving and loading."""
    for found in ranks(grouped, str(tmp_path)):
        for gap, apart, saved, loaded in found:
            assert gap <= 1e-6
            assert apart == 0
            assert saved == loaded
            assert [setting[:2] for setting in saved] == [(0.05, 0.0), (7.0, 0.0), (0.01, 0.1)]


class TwoTensors(nn.Module):
    """Gradients that are what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.ones(1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.a * a + self.b * b).sum()


def norm_orders() -> list[list[float]]:
    found = []
    for stage in STAGES:
        with engine_of(TwoTensors(), config(stage)) as engine:
            engine.backward(engine(torch.tensor([3.0]), torch.tensor([4.0])))
            found.append([engine.grad_norm(order) for order in (1.0, 2.0, 3.0, math.inf)])
            try:
                engine.grad_norm(0.0)
            except EngineError as error:
                assert "order" in str(error)  # noqa: PT017  in a rank there is no pytest.raises
            else:
                raise AssertionError("an order of 0 was taken")
    return found


def test_norms_of_other_orders(ranks: Ranks) -> None:
    """B28: for gradients 3 and 4 the norms of order 1, 2, 3 and infinity are 7, 5, 91^(1/3) and 4."""
    for stages in ranks(norm_orders):
        for norms in stages:
            assert norms == pytest.approx([7.0, 5.0, 91 ** (1 / 3), 4.0], rel=1e-6)


def edited() -> list[dict[str, Any]]:
    """What becomes of gradients that the user edits, by stage."""
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, optimizer=SGD)) as engine:
            rank = engine.data_group.rank
            names = [name for name, param in engine.module.named_parameters() if param.requires_grad]
            before = engine.full_state_dict()
            seen: dict[str, Any] = {}

            engine.backward(engine(*awkward_batch(0, 0, rank)))
            for name in names:
                engine.set_local_gradient(name, 0.0)
            seen["norm of local zeros"] = engine.grad_norm()
            engine.step()
            seen["norm the update saw"] = engine.get_global_grad_norm()
            seen["moved by local zeros"] = weights_apart(engine.full_state_dict(), before)

            engine.backward(engine(*awkward_batch(0, 0, rank)))
            for name in names:
                whole = engine.gradient(name)
                if whole is not None:
                    engine.set_gradient(name, whole * 0)
            seen["norm of whole zeros"] = engine.grad_norm()
            engine.step()
            seen["moved by whole zeros"] = weights_apart(engine.full_state_dict(), before)

            engine.backward(engine(*awkward_batch(0, 0, rank)))
            target = torch.arange(14.0).view(2, 7)
            engine.set_gradient("leave.weight", target)
            read = engine.gradient("leave.weight")
            seen["read back"] = float((read - target).abs().max())
            engine.step()
            moved = before["leave.weight"] - engine.full_state_dict()["leave.weight"]
            seen["moved by what was set"] = float((moved - 0.1 * target).abs().max())

            engine.backward(engine(*awkward_batch(0, 0, rank)))
            seen["unused"] = engine.gradient("unused.weight") is None
            engine.set_gradient("unused.weight", torch.ones(2, 3))
            seen["unused, set"] = float((engine.gradient("unused.weight") - 1).abs().max())
            engine.step()
            moved = before["unused.weight"] - engine.full_state_dict()["unused.weight"]
            seen["unused moved"] = float((moved - 0.1).abs().max())
            seen["tied"] = engine.driver.canonical("tied.weight")
            found.append(seen)
    return found


def test_an_edited_gradient_is_the_one_that_counts(ranks: Ranks) -> None:
    """B33: zeros written through the local and the whole setter give norm 0 and unchanged weights in every stage."""
    for stages in ranks(edited):
        for seen in stages:
            assert seen["norm of local zeros"] == seen["norm the update saw"] == seen["norm of whole zeros"] == 0
            assert seen["moved by local zeros"] == seen["moved by whole zeros"] == 0
            assert seen["read back"] <= 1e-6
            assert seen["moved by what was set"] <= 1e-6
            assert seen["unused"] is True
            assert seen["unused, set"] <= 1e-6
            assert seen["unused moved"] <= 1e-6
            assert seen["tied"] == "twice.weight"


def read_gradients() -> list[tuple[float, float]]:
    """By stage: (distance of gradients read by name from plain PyTorch's, of local parts put together)."""
    model = Awkward()
    for turn, rank in itertools.product(range(2), range(2)):
        (model(*awkward_batch(0, turn, rank)) / 4).backward()
    expected = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=2)) as engine:
            for turn in range(2):
                engine.backward(engine(*awkward_batch(0, turn, engine.data_group.rank)))
                if turn == 0:
                    engine.step()
            whole = {name: value for name, value in gradients_of_trainable(engine).items() if value is not None}
            total = torch.zeros(())
            for name in expected:
                part = engine.local_gradient(name)
                total += 0 if part is None else (part.double() / 4).square().sum().float()
            if stage:
                engine.data_group.all_reduce(total, site="a test")
            norm = float(torch.nn.utils.get_total_norm(list(expected.values())))
            found.append((weights_apart(whole, expected), abs(math.sqrt(total) - norm)))
    return found


def gradients_of_trainable(engine: Engine) -> dict[str, Tensor | None]:
    return {name: engine.gradient(name) for name, param in engine.module.named_parameters() if param.requires_grad}


def test_gradients_are_read_by_name(ranks: Ranks) -> None:
    for found in ranks(read_gradients):
        for whole, local in found:
            assert whole <= 1e-6
            assert local <= 1e-6


def clipped() -> list[tuple[Any, ...]]:
    model = Awkward()
    loss = sum(model(*awkward_batch(0, 0, rank)) for rank in range(2)) / 2
    loss.backward()
    before = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    after = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, optimizer=SGD)) as engine:
            engine.backward(engine(*awkward_batch(0, 0, engine.data_group.rank)))
            result = engine.clip(0.5)
            again = engine.clip(100.0)
            engine.step()
            gap = weights_apart(engine.full_state_dict(), model.state_dict())
            found.append((result.before - before, result.after - after, again.before - after, again.after - after, gap))
    return found


def test_clip_reports_the_norm_before_and_after(ranks: Ranks) -> None:
    for found in ranks(clipped):
        for gaps in found:
            assert max(map(abs, gaps)) <= 1e-6, found


def by_hand() -> list[float]:
    """Boundaries set by the user, and accumulation that the user counts."""
    gaps = []
    model = Awkward()
    expected = plain(model, awkward_batch, optimizer=adamw(model.parameters()), updates=2, accumulation=2, world=2)
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=2)) as engine:
            for update, turn in itertools.product(range(2), range(2)):
                engine.set_gradient_accumulation_boundary(turn == 1)
                assert engine.is_gradient_accumulation_boundary() == (turn == 1)
                engine.backward(engine(*awkward_batch(update, turn, engine.data_group.rank)))
                engine.step()
            assert engine.global_steps == 2
            gaps.append(weights_apart(engine.full_state_dict(), expected.weights))
        settings = config(stage, gradient_accumulation_steps=2, managed_gradient_accumulation=False)
        with engine_of(Awkward(), settings) as engine:
            for update in range(2):
                for turn in range(2):
                    engine.backward(engine(*awkward_batch(update, turn, engine.data_group.rank)))
                engine.step()
            assert engine.global_steps == 2
            gaps.append(weights_apart(engine.full_state_dict(), expected.weights))
    return gaps


def test_the_user_may_count_micro_batches(ranks: Ranks) -> None:
    for gaps in ranks(by_hand):
        assert max(gaps) <= 1e-6, gaps


def batches() -> list[tuple[float, float, float]]:
    """By stage: (distance of train_batch's losses, of eval_batch's, what eval_batch moved)."""
    model = Awkward()
    expected = plain(model, awkward_batch, optimizer=adamw(model.parameters()), updates=2, accumulation=2, world=2)
    held = torch.tensor([float(model(*awkward_batch(9, t, r)).detach()) for t in range(2) for r in range(2)]).mean()
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=2)) as engine:
            rank = engine.data_group.rank
            losses = [
                float(engine.train_batch(awkward_batch(update, turn, rank) for turn in range(2))) for update in range(2)
            ]
            before = engine.full_state_dict()
            engine.eval()
            loss = engine.eval_batch(awkward_batch(9, turn, rank) for turn in range(2))
            assert not engine.module.training
            moved = weights_apart(engine.full_state_dict(), before)
            gap = max(abs(a - b) for a, b in zip(losses, expected.losses, strict=True))
            found.append((max(gap, weights_apart(before, expected.weights)), abs(float(loss) - float(held)), moved))
    return found


def test_train_batch_and_eval_batch(ranks: Ranks) -> None:
    for found in ranks(batches):
        for train, evaluation, moved in found:
            assert train <= 1e-6
            assert evaluation <= 1e-6
            assert moved == 0


def evaluation_in_between() -> list[float]:
    """Forwards without gradients between forward and backward, and between micro-batches, change nothing."""
    gaps = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=2)) as engine:
            expected = steered(engine, awkward_batch, updates=2)
        with engine_of(Awkward(), config(stage, gradient_accumulation_steps=2)) as engine:
            rank = engine.data_group.rank
            for update, turn in itertools.product(range(2), range(2)):
                loss = engine(*awkward_batch(update, turn, rank))
                with torch.no_grad():
                    engine(*awkward_batch(7, turn, rank))
                engine.eval_batch(iter([awkward_batch(8, 0, rank)]), micro_batches=1)
                engine.backward(loss)
                engine.step()
            gaps.append(weights_apart(engine.full_state_dict(), expected.weights))
    return gaps


def test_evaluation_in_the_middle_of_an_update_changes_nothing(ranks: Ranks) -> None:
    for gaps in ranks(evaluation_in_between):
        assert max(gaps) == 0, gaps


USES = ((0, 1, 0, 1, 1), (0,), ())
"""The heads that each of three ranks runs through, one backward each."""


def different_code() -> list[float]:
    """Three ranks that run other heads, other numbers of times, and one that runs nothing."""
    gaps = []
    for uses in (USES, (*USES[1:], USES[0])):
        model = TwoHeads()
        for rank, heads in enumerate(uses):
            for head in heads:
                (model(twin_batch(0, 0, rank)[0], head) / 3).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        for stage in (0, 1, 2):
            with engine_of(TwoHeads(), config(stage, optimizer=SGD)) as engine:
                rank = engine.data_group.rank
                for head in uses[rank]:
                    engine.backward(engine(twin_batch(0, 0, rank)[0], head))
                engine.step()
                gaps.append(weights_apart(engine.full_state_dict(), model.state_dict()))
    return gaps


def test_ranks_may_run_different_code_where_parameters_are_whole(ranks: Ranks) -> None:
    """Other heads, other numbers of backwards, none at all: no rank waits for one that waits for it."""
    for gaps in ranks(different_code, world=3, deadline=30.0):
        assert max(gaps) <= 1e-6, gaps


def adapters() -> Awkward:
    """Most parameters are frozen, before and after those that learn."""
    model = Awkward()
    for name, param in model.named_parameters():
        param.requires_grad_("blocks.1.linear" in name or name == "scale")
    return model


def mostly_frozen() -> list[float]:
    model = adapters()
    learning = [param for param in model.parameters() if param.requires_grad]
    expected = plain(model, awkward_batch, optimizer=adamw(learning), updates=3, world=2)
    gaps = []
    for stage in STAGES:
        with engine_of(adapters(), config(stage)) as engine:
            gaps.append(steered(engine, awkward_batch, updates=3).apart(expected))
    return gaps


def test_a_model_that_is_mostly_frozen(ranks: Ranks) -> None:
    for gaps in ranks(mostly_frozen):
        assert max(gaps) <= 1e-6, gaps


class Bag(nn.Module):
    """Its embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.EmbeddingBag(10, 4, sparse=True, mode="sum")
        self.out = nn.Linear(4, 1)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.out(self.embed(words)).square().mean()
        return out


def bag_batch(update: int, turn: int, rank: int) -> tuple[Tensor]:
    return (torch.tensor([[2 * rank + update % 2, 9]]),)


def sparse() -> list[float]:
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for update in range(3):
        (sum(model(*bag_batch(update, 0, rank)) for rank in range(2)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    gaps = []
    for stage in STAGES:
        with engine_of(Bag(), config(stage, optimizer=SGD)) as engine:
            weights = steered(engine, bag_batch, updates=3).weights
            gaps.append(weights_apart(weights, dict(model.state_dict())))
    return gaps


def test_sparse_gradients_are_reduced(ranks: Ranks) -> None:
    """Words that one rank saw, and one that both saw."""
    for gaps in ranks(sparse):
        assert max(gaps) <= 1e-6, gaps


def no_gradients() -> list[tuple[float | None, float]]:
    """A step without any backward, after one with: (its norm, what it moved)."""
    found = []
    for stage in STAGES:
        with engine_of(Awkward(), config(stage)) as engine:
            steered(engine, awkward_batch, updates=1)
            before = engine.full_state_dict()
            engine.step()
            found.append((engine.get_global_grad_norm(), weights_apart(engine.full_state_dict(), before)))
    return found


def test_a_step_without_gradients_moves_nothing(ranks: Ranks) -> None:
    for found in ranks(no_gradients):
        assert found == [(0.0, 0.0)] * 4
