"""Stage 3: whatever a model does with its parameters and however they move, it learns the same as plain PyTorch."""

from __future__ import annotations

from typing import Any

from zero_models import MODELS, apart, engine_of, make, settings, train, train_plain

from dsx.testing.ranks import run_ranks

TIGHT = 3e-6
"""Some roundings of fp32 at weights near 1."""

MOVES: dict[str, dict[str, Any]] = {
    "default": {},
    "never kept": {"stage3_max_reuse_distance": 0},
    "no prefetch": {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0},
    "far": {"stage3_max_reuse_distance": 10**9, "stage3_prefetch_bucket_size": 10**9},
    "tiny live": {"stage3_max_live_parameters": 1},
    "one at a time": {"stage3_allgather_sequential": True, "stage3_max_live_parameters": 30},
    "some persistent": {"stage3_param_persistence_threshold": 20},
    "budget of persistent": {"stage3_param_persistence_threshold": 50, "stage3_model_persistence_threshold": 10},
    "all persistent": {"stage3_param_persistence_threshold": 10**9},
    "coarse": {"stage3_module_granularity_threshold": 1000},
    "leaf": {"leaf_module": {"classes": ["Block"], "names": ["head"]}},
    "small buckets": {"reduce_bucket_size": 8},
}


def _trains_as_plain(kinds: list[str], moves: list[str]) -> dict[str, tuple[float, float]]:
    """Differences of loss and weights to torch alone, by case."""
    found = {}
    for kind in kinds:
        losses, weights = train_plain(make(kind), range(3))
        for move in moves:
            with engine_of(make(kind), settings(3, zero=MOVES[move])) as engine:
                ours = train(engine, range(3))
                difference = max(abs(a - b) if a == a else float("inf") for a, b in zip(ours, losses, strict=True))
                found[f"{kind}, {move}"] = (difference, apart(engine.full_state_dict(), weights))
    return found


def _bad(found: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {case: differences for case, differences in found.items() if max(differences) > TIGHT}


def test_every_model_learns_as_plain_torch_does() -> None:
    """B36, B43 (training): external reads, shared, returned, frozen, packed, recomputed parameters; on two ranks."""
    found = run_ranks(_trains_as_plain, list(MODELS), ["default", "never kept", "tiny live"], world=2)
    assert [_bad(each) for each in found] == [{}, {}]
    assert len(found[0]) == 3 * len(MODELS)


def test_no_way_of_moving_parameters_changes_what_is_learnt() -> None:
    """Reuse, prefetch, budgets, persistence, units and buckets decide speed and memory, never results."""
    found = run_ranks(_trains_as_plain, ["Mlp", "Blocks"], list(MOVES), world=3)
    assert [_bad(each) for each in found] == [{}, {}, {}]
    assert len(found[0]) == 2 * len(MOVES)
