"""The batch triple: whatever part is given, train = micro × accumulation × replicas, or the numbers are shown."""

from __future__ import annotations

from itertools import product

import pytest
from fake_plugins import manager
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.config.auto import AUTO
from dsx.errors import PlanError
from dsx.planning.batch import MICRO, STEPS, TRAIN, Batch, solve_batch
from dsx.planning.make import make_plan
from dsx.plugin import World

sizes = st.integers(1, 64)


def holds(batch: Batch) -> bool:
    return batch.train == batch.micro * batch.accumulation * batch.replicas


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("given_keys", list(product([False, True], repeat=3)))
def test_every_subset_for_every_world(world: int, given_keys: tuple[bool, bool, bool]) -> None:
    """B06: always train = micro · gas · world; none given is an error; only micro given means gas 1."""
    full = {TRAIN: 6 * world, MICRO: 2, STEPS: 3}
    config = {key: full[key] for key, wanted in zip((TRAIN, MICRO, STEPS), given_keys, strict=True) if wanted}
    if TRAIN not in config and MICRO not in config:
        with pytest.raises(PlanError, match="no batch size is given"):
            make_plan(config, world=World(size=world), plugins=manager())
        return
    batch = make_plan(config, world=World(size=world), plugins=manager()).batch
    assert holds(batch)
    assert all(
        {TRAIN: batch.train, MICRO: batch.micro, STEPS: batch.accumulation}[key] == config[key] for key in config
    )
    if list(config) == [MICRO]:
        assert batch.accumulation == 1


@settings(deadline=None)  # a loaded machine is no failure
@given(micro=sizes, steps=sizes, replicas=sizes)
def test_any_two_give_the_third(micro: int, steps: int, replicas: int) -> None:
    whole = Batch(micro * steps * replicas, micro, steps, replicas)
    assert solve_batch(whole.train, micro, None, replicas=replicas)[0] == whole
    assert solve_batch(whole.train, None, steps, replicas=replicas)[0] == whole
    assert solve_batch(None, micro, steps, replicas=replicas)[0] == whole
    assert solve_batch(whole.train, micro, steps, replicas=replicas)[0] == whole


@settings(deadline=None)  # a loaded machine is no failure
@given(train=sizes, micro=sizes | st.none(), steps=sizes | st.none(), replicas=sizes)
def test_solved_or_refused_with_all_numbers(train: int, micro: int | None, steps: int | None, replicas: int) -> None:
    """B06: indivisible sizes are an error that shows every number."""
    if train % ((micro or 1) * (steps or 1) * replicas) == 0 and (
        not micro or not steps or train == micro * steps * replicas
    ):
        batch, _ = solve_batch(train, micro, steps, replicas=replicas)
        assert holds(batch)
        assert batch.train == train
        assert micro in (None, batch.micro)
        assert steps in (None, batch.accumulation)
        return
    with pytest.raises(PlanError) as caught:
        solve_batch(train, micro, steps, replicas=replicas)
    for number in filter(None, (train, micro, steps)):
        assert str(number) in str(caught.value)
    assert f"{replicas} data replicas" in str(caught.value)


@settings(deadline=None)  # a loaded machine is no failure
@given(train=sizes, micro=sizes, replicas=sizes)
def test_nearest_legal_size_is_legal(train: int, micro: int, replicas: int) -> None:
    try:
        solve_batch(train, micro, None, replicas=replicas)
    except PlanError as error:
        proposed = str(error).rpartition(f"nearest legal: {TRAIN}=")[2].split(" or ")
        assert proposed
        for size in proposed:
            assert holds(solve_batch(int(size), micro, None, replicas=replicas)[0])


def test_triple_is_judged_where_the_world_is_known() -> None:
    """B04 (b): the same file passes with two ranks and fails with one, with the three numbers shown."""
    config = {MICRO: 8, STEPS: 1, TRAIN: 16}
    assert make_plan(config, world=World(size=2), plugins=manager()).batch == Batch(16, 8, 1, 2)
    with pytest.raises(PlanError) as caught:
        make_plan(config, world=World(size=1), plugins=manager())
    for part in (f"{TRAIN}=16", f"{MICRO}=8", f"{STEPS}=1", "1 data replicas", "16 = 8 × 1 × 1"):
        assert part in str(caught.value)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_three_at_auto_have_stated_defaults(world: int) -> None:
    """B04 (a): never a TypeError; every value comes with its reason."""
    plan = make_plan({TRAIN: "auto", MICRO: "auto", STEPS: "auto"}, world=World(size=world), plugins=manager())
    assert plan.batch == Batch(world, 1, 1, world)
    assert (plan.config.train_batch_size, plan.config.train_micro_batch_size_per_gpu) == (world, 1)
    reasons = {item.key: item.why for item in plan.resolved}
    assert set(reasons) == {TRAIN, MICRO, STEPS}
    assert all(reasons.values())


@pytest.mark.parametrize(
    ("asked", "solved"),
    [
        ((AUTO, 4, AUTO), Batch(8, 4, 1, 2)),
        ((16, AUTO, AUTO), Batch(16, 8, 1, 2)),
        ((16, AUTO, 4), Batch(16, 2, 4, 2)),
        ((16, 2, AUTO), Batch(16, 2, 4, 2)),
        ((AUTO, AUTO, 4), Batch(8, 1, 4, 2)),
        ((None, AUTO, None), Batch(2, 1, 1, 2)),
        ((AUTO, None, None), Batch(2, 1, 1, 2)),
    ],
)
def test_auto_is_open_where_numbers_are_fixed(asked: tuple[object, object, object], solved: Batch) -> None:
    batch, resolved = solve_batch(*asked, replicas=2)  # type: ignore[arg-type]
    assert batch == solved
    values = {TRAIN: batch.train, MICRO: batch.micro, STEPS: batch.accumulation}
    autos = {key for key, value in zip((TRAIN, MICRO, STEPS), asked, strict=True) if value is AUTO}
    assert {item.key: item.value for item in resolved} == {key: values[key] for key in autos}
