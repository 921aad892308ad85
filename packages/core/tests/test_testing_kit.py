"""The test kit itself: it must find what it is there to find."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dsx.errors import KernelError
from dsx.kernels import OPERATIONS
from dsx.kernels.adam_step import adam_step
from dsx.plugin import Form, Kernel, MeshAxis, PluginSpec, Score, World, hookimpl
from dsx.testing.fake import FakeMesh, fake_worlds
from dsx.testing.faults import Fault, fails_at, kills_at
from dsx.testing.kernels import FORMS, check_variants
from dsx.testing.leaks import Traces, assert_freed, freed
from dsx.testing.ranks import RanksFailed, run_ranks

pytest_plugins = ["pytester"]


class _OneVariant:
    """A registry with the reference and one more variant of ``adam_step``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def scores(self, operation: str) -> tuple[tuple[str, Score], ...]:
        return (("mine", Score(2, "here")), ("absent", Score(0, "not here")), ("torch", Score(1, "reference")))

    def require(self, operation: str, variant: str) -> Callable[..., Any]:
        assert variant == "mine"
        return self._function

    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]:
        return self._function


def test_a_right_variant_passes_and_is_named() -> None:
    assert check_variants("adam_step", registry=_OneVariant(adam_step), sizes=(0, 1, 65)) == ["mine"]


def _rounds_wrongly(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, *args, **kwargs)
    shard.mul_(1.001)


def _writes_outside(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, *args, **kwargs)
    shard.as_strided((shard.numel() + 1,), (1,))[-1] = 0


def _changes_and_refuses(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    shard.add_(1)
    raise KernelError("not this one")


def _ignores_copy_out(*args: Any, copy_out: Tensor | None = None, **kwargs: Any) -> None:
    adam_step(*args, **kwargs)


def _varies(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, *args, **kwargs)
    shard.mul_(1 + 1e-6 * torch.rand(()))


def _changes_grad(shard: Tensor, grad: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, grad, *args, **kwargs)
    grad.zero_()


def _hides_nan(shard: Tensor, grad: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, grad.nan_to_num(), *args, **kwargs)


def _spreads_nan(shard: Tensor, grad: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, grad + 0 * grad.sum(), *args, **kwargs)


def _takes_gaps_for_none(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    flat = [held.as_strided((held.numel(),), (1,)) for held in (shard, *args)]
    adam_step(*flat, **kwargs)  # type: ignore[arg-type]


def _needs_aligned(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    if shard.data_ptr() % 8:
        raise RuntimeError("misaligned address")
    adam_step(shard, *args, **kwargs)


def _makes_nan(shard: Tensor, *args: Any, **kwargs: Any) -> None:
    adam_step(shard, *args, **kwargs)
    shard.fill_(torch.nan)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_rounds_wrongly, "shard differs"),
        (_makes_nan, "shard differs"),
        (_writes_outside, "wrote outside shard"),
        (_changes_and_refuses, "was refused, but changed shard"),
        (_ignores_copy_out, "copy_out differs"),
        (_varies, "shard differs when it is run again"),
        (_changes_grad, "changed grad"),
        (_hides_nan, "bad=inf.*: shard differs, finite where the reference is not, or not"),
        (_spreads_nan, "shard differs, finite where the reference is not, or not"),
        (_takes_gaps_for_none, "stride=2.*shard differs"),
        (_needs_aligned, "raised RuntimeError: misaligned address"),
    ],
)
def test_wrong_variants_are_found(wrong: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_variants("adam_step", registry=_OneVariant(wrong), sizes=(65,))


@pytest.mark.parametrize("operation", sorted(FORMS))
def test_forms_fit_the_references(operation: str) -> None:
    from dsx.kernels import reference

    check_variants(operation, registry=_OneVariant(reference(operation)), sizes=(3,))


def test_every_flat_operation_has_a_form() -> None:
    assert set(OPERATIONS) - set(FORMS) == {"muon_step"}  # works on matrices
    with pytest.raises(AssertionError, match="operation muon_step has no form"):
        check_variants("muon_step")
    with pytest.raises(AssertionError, match="unknown kernel operation 'adam_stp'"):
        check_variants("adam_stp")


def shrink_step(shard: Tensor, grad: Tensor, seen: Tensor, *, lr: float, copy_out: Tensor | None = None) -> None:
    """An operation that the core does not know."""
    seen.add_(grad.float().abs())
    shard.sub_((grad.float() * lr / (1 + seen)).to(shard.dtype))
    if copy_out is not None:
        copy_out.copy_(shard)


def _shrinks_faster(shard: Tensor, grad: Tensor, seen: Tensor, *, lr: float, copy_out: Tensor | None = None) -> None:
    shrink_step(shard, grad, seen, lr=1.1 * lr, copy_out=copy_out)


def _untidy(shard: Tensor, grad: Tensor, seen: Tensor, *, lr: float, copy_out: Tensor | None = None) -> None:
    shrink_step(shard, grad, seen, lr=lr, copy_out=copy_out)
    grad.zero_()


class _OwnOperation:
    """A plugin with an operation of its own."""

    def __init__(self, fast: Callable[..., Any], *, form: Form | None, torch: Callable[..., Any] = shrink_step) -> None:
        self.kernels = [
            Kernel("shrink_step", "torch", lambda: torch, lambda: Score(1, "reference"), form=form and (lambda: form)),
            Kernel("shrink_step", "fast", lambda: fast, lambda: Score(2, "here")),
        ]

    @hookimpl
    def dsx_plugin(self) -> PluginSpec:
        return PluginSpec(name="shrinking", api=1, summary="an operation")

    @hookimpl
    def dsx_components(self) -> list[Kernel]:
        return self.kernels


def test_a_plugins_own_operation_is_compared_with_its_own_reference() -> None:
    form = Form(("seen",), ({"lr": 0.1},))
    sizes = (0, 1, 65)
    plugin = _OwnOperation(shrink_step, form=form)
    assert check_variants("shrink_step", plugins=[plugin], sizes=sizes) == ["fast"]
    for wrong, message in (
        (_OwnOperation(_shrinks_faster, form=form), "shrink_step=fast with .* shard differs"),
        (_OwnOperation(shrink_step, form=form, torch=_untidy), "shrink_step=torch with .* changed grad"),
        (_OwnOperation(shrink_step, form=None), "operation shrink_step has no form"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_variants("shrink_step", plugins=[wrong], sizes=sizes)
    bare = _OwnOperation(_shrinks_faster, form=None)
    with pytest.raises(AssertionError, match="shard differs"):
        check_variants("shrink_step", plugins=[bare], form=form, reference=shrink_step, sizes=sizes)


def test_64_ranks_in_one_process() -> None:
    axes = (MeshAxis("pipe", 2), MeshAxis("data", 16), MeshAxis("tensor", 2), MeshAxis("expert", 4, inside="data"))
    for world in fake_worlds(64):
        mesh = FakeMesh(axes, world=world)
        data = mesh.group("data")
        assert (data.size, data.ranks[data.rank]) == (16, world.rank)
        value = torch.ones(160)
        data.all_reduce(value, site="x")
        assert value[0] == 16
        shard = torch.empty(10)
        data.reduce_scatter(shard, torch.arange(160.0), site="x")
        assert torch.equal(shard, 16 * torch.arange(10.0 * data.rank, 10.0 * data.rank + 10))
        whole = torch.empty(40)
        mesh.group("expert").all_gather(whole, shard, site="x")
        assert torch.equal(whole, shard.repeat(4))
        assert mesh.control.exchange_objects("same", site="x") == ["same"] * 64
        assert data.account.total.bytes == 3 * 160 * 4 * 15 // 16
        mesh.close()


def test_a_fake_mesh_of_one() -> None:
    mesh = FakeMesh(world=World())
    assert mesh.group("data").exchange_objects(1, site="x") == [1]


def test_traces_find_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Traces.now()
    assert before.left_behind() == []
    monkeypatch.setenv("DSX_TEST_LEFT", "1")
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten")
    thread.start()
    left = before.left_behind()
    go.set()
    thread.join()
    assert left == ["thread 'forgotten'", "environment variable DSX_TEST_LEFT='1' (was None)"]


class _Holder:
    pass


def test_freed_objects_and_those_that_are_not() -> None:
    thing, keeper = _Holder(), []
    with freed(thing):
        del thing
    kept = _Holder()
    keeper.append(kept)
    with pytest.raises(AssertionError, match="still alive: _Holder, held by list"), freed(kept):
        del kept
    ring = _Holder()
    ring.me = ring  # type: ignore[attr-defined]
    reference = weakref.ref(ring)
    del ring
    assert_freed(reference)
    assert gc.isenabled()


def test_faults_strike_at_the_call_and_are_undone(tmp_path: Path) -> None:
    original = os.replace
    with fails_at(os, "replace", call=2):
        for number in range(3):
            (tmp_path / "a").write_text(str(number))
            if number == 1:
                with pytest.raises(Fault, match="call 2 of replace"):
                    os.replace(tmp_path / "a", tmp_path / "b")
            else:
                os.replace(tmp_path / "a", tmp_path / "b")
    assert os.replace is original
    assert (tmp_path / "b").read_text() == "2"
    with pytest.raises(OSError, match="full"), fails_at(shutil, "copy", after=True, error=OSError("full")):
        shutil.copy(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").exists()


def _killed(path: str) -> None:
    Path(path, "a").write_text("x")
    with kills_at(os, "replace", after=True):
        os.replace(f"{path}/a", f"{path}/b")
    Path(path, "c").write_text("never")


def test_a_kill_at_a_point(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match=signal.SIGKILL.name):
        run_ranks(_killed, str(tmp_path), world=1, init=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b"]


def test_leak_guards_of_the_pytest_plugin(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndsx_leaks = true\n")
    pytester.makepyfile(
        """
        import os, threading, time, pytest

        def test_clean(ranks, plugins):
            assert callable(ranks) and callable(plugins)

        def test_variable():
            os.environ["LEFT"] = "1"

        def test_variable_is_gone_again():
            assert "LEFT" not in os.environ

        @pytest.mark.leaks("on purpose")
        def test_allowed():
            os.environ["ALLOWED"] = "1"

        def test_thread():
            threading.Thread(target=time.sleep, args=(30,), name="sleeper", daemon=True).start()
        """
    )
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(passed=5, errors=2)
    result.stdout.fnmatch_lines(["*left behind: environment variable LEFT='1'*", "*left behind: thread 'sleeper'*"])


def test_the_plugin_does_not_import_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
