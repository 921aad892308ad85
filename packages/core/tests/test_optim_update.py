"""Updates by pieces against torch's own optimizers, merged or not, with gradients missing, in groups."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from optim_helpers import EVERY, PAIRS, Bucket, Counting, close
from torch import nn

from dsx.errors import EngineError
from dsx.optim.adam import AdamW
from dsx.optim.base import Optimizer
from dsx.optim.lion import Lion
from dsx.optim.muon import Muon
from dsx.optim.piece import Piece
from dsx.optim.sgd import SGD

SHAPES = [(3, 5), (7,), (0,), (1,), (2, 3, 4)]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_pieces_of_one_bucket_equal_torch(name: str, factor: float) -> None:
    ours, theirs = PAIRS[name]
    bucket = Bucket(SHAPES)
    wanted = bucket.copies()
    kernels = Counting()
    optimizer, peer = ours(bucket.masters, kernels=kernels), theirs(wanted)
    for k in range(4):
        bucket.grad.copy_(torch.randn(bucket.numel, generator=torch.Generator().manual_seed(k)))
        for p, g in zip(wanted, bucket.views(bucket.grad), strict=True):
            p.grad = g * factor
        optimizer.update(bucket.pieces(), factor=factor)
        peer.step()
    close(bucket.masters, wanted)
    assert [numel for _, numel in kernels.calls] == [bucket.numel] * 4, "one call serves the whole bucket"


@pytest.mark.parametrize("name", PAIRS)
def test_standalone_step_equals_torch_with_missing_gradients(name: str) -> None:
    ours, theirs = PAIRS[name]
    bucket = Bucket(SHAPES)
    mine, wanted = bucket.copies(), bucket.copies()
    optimizer, peer = ours(mine), theirs(wanted)
    for k in range(4):
        for params in (mine, wanted):
            for i, (p, g) in enumerate(zip(params, bucket.views(bucket.grad), strict=True)):
                p.grad = None if (i + k) % 2 else g.clone()
        optimizer.step()
        peer.step()
    close(mine, wanted)


@pytest.mark.parametrize("name", EVERY)
def test_a_piece_without_gradient_is_untouched(name: str) -> None:
    """B20: weights, moments and step of a head that is not used do not change, whatever runs it was merged in."""
    bucket = Bucket([(3, 5), (4, 2), (2, 3)])
    alone = [copy.deepcopy(m) for m in bucket.masters]
    optimizer = EVERY[name](bucket.masters)
    single = [EVERY[name]([p]) for p in alone]
    names = [piece.name for piece in bucket.pieces()]
    for missing in ((), (1,), (), (0, 2), (0, 1, 2), ()):
        before = [
            (p.detach().clone(), copy.deepcopy(dict(optimizer.state[p]))) for p in (bucket.masters[i] for i in missing)
        ]
        optimizer.update(bucket.pieces(missing), factor=0.5)
        for i, (weights, state) in zip(missing, before, strict=True):
            torch.testing.assert_close(bucket.masters[i].detach(), weights, rtol=0, atol=0)
            assert optimizer.state[bucket.masters[i]].keys() == state.keys() or not state
            for key, value in state.items():
                torch.testing.assert_close(optimizer.state[bucket.masters[i]][key], value, rtol=0, atol=0)
        for i, (one, p, g) in enumerate(zip(single, alone, bucket.views(bucket.grad), strict=True)):
            one.update([Piece(names[i], p, None if i in missing else g.clone(), None)], factor=0.5)
    close(bucket.masters, alone)
    steps = [optimizer.state[p]["step"] for p in bucket.masters]
    assert steps == [4, 4, 4]


@pytest.mark.parametrize("name", EVERY)
def test_the_published_copy_is_the_rounded_master(name: str) -> None:
    bucket = Bucket(SHAPES, publish=torch.bfloat16)
    optimizer = EVERY[name](bucket.masters)
    for _ in range(2):
        optimizer.update(bucket.pieces(), factor=1.0)
    assert bucket.out is not None
    torch.testing.assert_close(bucket.out, bucket.flat.to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_only_read(name: str) -> None:
    bucket = Bucket(SHAPES)
    before = bucket.grad.clone()
    EVERY[name](bucket.masters).update(bucket.pieces(), factor=0.5)
    torch.testing.assert_close(bucket.grad, before, rtol=0, atol=0)


def test_two_tensors_in_one_call_and_one_step_each() -> None:
    """B50: ones of 2^16 elements twice, lr 0.01, 2 steps: both equal torch's, and the step counts updates."""
    bucket = Bucket([(2**16,), (2**16,)])
    bucket.flat.fill_(1.0)
    bucket.grad.fill_(1.0)
    wanted = bucket.copies()
    optimizer, peer = AdamW(bucket.masters, lr=0.01), torch.optim.AdamW(wanted, lr=0.01)
    for _ in range(2):
        for p in wanted:
            p.grad = torch.ones_like(p)
        optimizer.update(bucket.pieces())
        peer.step()
    close(bucket.masters, wanted)
    assert [optimizer.state[p]["step"] for p in bucket.masters] == [2, 2]


def test_two_groups_keep_their_settings_and_do_not_merge() -> None:
    bucket = Bucket([(5,), (3,), (4,)])
    wanted = bucket.copies()
    kernels = Counting()

    def groups(p: list[nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": p[:2], "weight_decay": 0.5}, {"params": p[2:], "lr": 0.3, "weight_decay": 0.0}]

    optimizer = AdamW(groups(bucket.masters), lr=0.1, kernels=kernels)
    peer = torch.optim.AdamW(groups(wanted), lr=0.1)
    for k in range(3):
        for p, g in zip(wanted, bucket.views(bucket.grad), strict=True):
            p.grad = g.clone()
        optimizer.param_groups[1]["lr"] = peer.param_groups[1]["lr"] = 0.3 / (k + 1)
        optimizer.update(bucket.pieces())
        peer.step()
    close(bucket.masters, wanted)
    assert [numel for _, numel in kernels.calls] == [8, 4] * 3


def test_pieces_come_in_any_order_and_buckets_one_by_one() -> None:
    first, second = Bucket([(5,), (3,)]), Bucket([(4,), (2, 2)], seed=1)
    whole = [copy.deepcopy(p) for p in (*first.masters, *second.masters)]
    kernels = Counting()
    optimizer, peer = AdamW([*first.masters, *second.masters], kernels=kernels), AdamW(whole)
    for _ in range(3):
        optimizer.update(list(reversed(first.pieces())))
        optimizer.update(second.pieces())
        for p, piece in zip(whole, (*first.pieces(), *second.pieces()), strict=True):
            p.grad = piece.grad
        peer.step()
    close([*first.masters, *second.masters], whole)
    assert [numel for _, numel in kernels.calls] == [8, 8] * 3


def test_neighbours_in_weights_but_not_in_gradients_are_not_merged() -> None:
    bucket = Bucket([(5,), (3,)])
    kernels = Counting()
    optimizer = AdamW(bucket.masters, kernels=kernels)
    pieces = bucket.pieces()
    pieces[1].grad = torch.randn(3)
    before = bucket.flat.clone()
    optimizer.update(pieces)
    assert [numel for _, numel in kernels.calls] == [5, 3]
    assert (bucket.flat != before).all()


def test_adjacent_addresses_of_separate_storages_are_not_merged() -> None:
    store = torch.arange(8, dtype=torch.float32)
    halves = [nn.Parameter(torch.from_numpy(store.numpy()[part])) for part in (slice(0, 4), slice(4, 8))]
    kernels = Counting()
    optimizer = SGD(halves, lr=1.0, kernels=kernels)
    grad = torch.ones(8)
    optimizer.update([Piece("a", halves[0], grad[:4], None), Piece("b", halves[1], grad[4:], None)])
    torch.testing.assert_close(store, torch.arange(8, dtype=torch.float32) - 1)
    assert len(kernels.calls) == 2


def test_narrow_gradients_and_moments() -> None:
    bucket = Bucket([(5,), (3,)], publish=torch.bfloat16)
    wanted = bucket.copies()
    optimizer, peer = AdamW(bucket.masters, state_dtype="bf16"), torch.optim.AdamW(wanted)
    for _ in range(5):
        grads = bucket.grad.to(torch.bfloat16)
        for p, g in zip(wanted, bucket.views(grads.float()), strict=True):
            p.grad = g
        pieces = bucket.pieces()
        for piece, g in zip(pieces, bucket.views(grads), strict=True):
            piece.grad = g
        optimizer.update(pieces)
        peer.step()
    state = optimizer.state[bucket.masters[0]]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.bfloat16
    for found, want in zip(bucket.masters, wanted, strict=True):
        torch.testing.assert_close(found.detach(), want.detach(), rtol=0, atol=2e-4)  # a twentieth of the way gone


@pytest.mark.parametrize("name", EVERY)
def test_strided_weights(name: str) -> None:
    """A transposed parameter, with a transposed gradient and copy."""
    w, g = torch.randn(4, 6), torch.randn(4, 6)
    plain, strided = nn.Parameter(w.clone()), nn.Parameter(w.t().contiguous().t())
    out = torch.zeros(6, 4, dtype=torch.bfloat16).t()
    one, other = EVERY[name]([plain]), EVERY[name]([strided])
    for _ in range(2):
        one.update([Piece("w", plain, g, None)], factor=0.5)
        other.update([Piece("w", strided, g.t().contiguous().t(), out)], factor=0.5)
    torch.testing.assert_close(strided.detach(), plain.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(out, plain.detach().to(torch.bfloat16), rtol=0, atol=8e-3)
    assert not strided.is_contiguous()


def test_strided_gradient_or_copy_of_plain_weights() -> None:
    w, g = torch.randn(4, 6), torch.randn(4, 6)
    plain, other = nn.Parameter(w.clone()), nn.Parameter(w.clone())
    out = torch.zeros(6, 4).t()
    one, two = AdamW([plain]), AdamW([other])
    one.update([Piece("w", plain, g, None)])
    two.update([Piece("w", other, g.t().contiguous().t(), out)])
    torch.testing.assert_close(other, plain, rtol=0, atol=0)
    torch.testing.assert_close(out, plain.detach(), rtol=0, atol=0)


def test_states_of_neighbours_share_one_buffer() -> None:
    bucket = Bucket(SHAPES)
    optimizer = AdamW(bucket.masters)
    optimizer.init_state(bucket.pieces(missing=range(len(SHAPES))))
    for key in ("exp_avg", "exp_avg_sq"):
        storages = {optimizer.state[p][key].untyped_storage().data_ptr() for p in bucket.masters if p.numel()}
        assert len(storages) == 1
    first = optimizer.state[bucket.masters[0]]
    assert first["step"] == 0
    assert first["exp_avg"].untyped_storage().nbytes() == 4 * bucket.numel
    kept = first["exp_avg"]
    optimizer.init_state(bucket.pieces())
    assert optimizer.state[bucket.masters[0]]["exp_avg"] is kept, "a state that is there stays"


def test_a_state_set_from_outside_counts() -> None:
    """A loader may copy into the moments, replace them, or set the steps apart: the next update sees it."""
    bucket = Bucket([(5,), (3,)])
    kernels = Counting()
    optimizer = AdamW(bucket.masters, lr=0.1, kernels=kernels)
    optimizer.update(bucket.pieces())
    optimizer.state[bucket.masters[1]]["step"] = 10
    optimizer.state[bucket.masters[0]]["exp_avg"] = torch.ones(5)
    wanted = bucket.copies()
    peer = torch.optim.AdamW(wanted, lr=0.1)
    for p, master, g in zip(wanted, bucket.masters, bucket.views(bucket.grad), strict=True):
        state = optimizer.state[master]
        peer.state[p] = {
            "step": torch.tensor(float(state["step"])),
            "exp_avg": state["exp_avg"].clone(),
            "exp_avg_sq": state["exp_avg_sq"].clone(),
        }
        p.grad = g.clone()
    optimizer.update(bucket.pieces())
    peer.step()
    close(bucket.masters, wanted)
    assert [numel for _, numel in kernels.calls] == [8, 5, 3]


def test_bytes_of_state() -> None:
    bucket = Bucket([(4, 6), (7,)])
    names = [("hidden.weight", bucket.masters[0]), ("hidden.bias", bucket.masters[1])]
    assert AdamW(bucket.masters).state_bytes_per_element == 8
    assert AdamW(bucket.masters, state_dtype="bf16").state_bytes_per_element == 4
    assert SGD(bucket.masters).state_bytes_per_element == 0
    assert Lion(bucket.masters).state_bytes_per_element == 4
    assert Muon(names).state_bytes_per_element == (24 * 4 + 7 * 8) / 31


def test_a_stranger_and_a_sparse_gradient_are_refused() -> None:
    bucket = Bucket([(2, 3)])
    optimizer = AdamW(bucket.masters)
    other = nn.Parameter(torch.zeros(2))
    with pytest.raises(EngineError, match="'lost' belongs to no parameter group"):
        optimizer.update([Piece("lost", other, torch.ones(2), None)])
    with pytest.raises(EngineError, match="'p0' is sparse"):
        optimizer.update([Piece("p0", bucket.masters[0], torch.ones(2, 3).to_sparse(), None)])
    with pytest.raises(EngineError, match=r"shape \(6,\), its weights \(2, 3\)"):
        optimizer.update([Piece("p0", bucket.masters[0], torch.ones(6), None)])


def test_subclasses_of_others_need_two_methods() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Optimizer([nn.Parameter(torch.zeros(1))], {"lr": 0.1})  # type: ignore[abstract]
