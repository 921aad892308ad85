"""What is written under any cut is read under any other; nothing depends on the number of ranks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.checkpoint import Boxes
from dsx.checkpoint.load import load
from dsx.checkpoint.manifest import MANIFEST
from dsx.checkpoint.save import save
from dsx.comm.collectives import Collectives
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart
from dsx.testing.threads import Holder, every, run_threads, single


def weights() -> dict[str, torch.Tensor]:
    """Odd sizes, dimensions of one, a scalar, tensors without elements, several dtypes."""
    torch.manual_seed(0)
    return {
        "seven": torch.randn(7),
        "thirteen": torch.randn(13).to(torch.bfloat16),
        "one": torch.randn(1),
        "thirty": torch.randn(5, 1, 6),
        "scalar": torch.randn(()),
        "empty": torch.randn(0, 4),
        "ids": torch.arange(11),
        "flags": torch.tensor([True, False, True]),
        "dotted.name/with/slash%": torch.randn(3, 5, 7).to(torch.float16),
    }


def write(root: Path, size: int, cuts: Any = (), **options: Any) -> None:
    whole = weights()

    def on_rank(group: Any) -> None:
        part = Holder(whole, rank=group.rank, size=size, cuts=cuts).part()
        save(root, tag="t", parts=[part], group=group, **options)

    every(run_threads(size, on_rank))


def read(root: Path, size: int, cuts: Any = ()) -> None:
    whole = weights()

    def on_rank(group: Any) -> None:
        holder = Holder(whole, rank=group.rank, size=size, cuts=cuts)
        holder.erase()
        load(root, tag="t", parts=[holder.part()], group=group)
        assert holder.equals(whole)
        assert holder.plain == {"step": 3}

    every(run_threads(size, on_rank))


@pytest.mark.parametrize("writers", [1, 2, 3, 4])
def test_any_world_size_reads_any_other(tmp_path: Path, writers: int) -> None:
    """B44, B45: odd sizes, written by 1 to 4 ranks, read by 1 to 4."""
    write(tmp_path, writers)
    for readers in (1, 2, 3, 4):
        read(tmp_path, readers)


fractions = st.lists(st.floats(0, 1), min_size=2, max_size=2)


@given(fractions, fractions)
@settings(max_examples=15, deadline=None)
def test_any_cut_reads_any_other(one: list[float], other: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), 3, one)
        read(Path(folder), 3, other)


def test_no_rank_padding_or_flat_buffer_is_written(tmp_path: Path) -> None:
    """B44: only names, global shapes and elements."""
    write(tmp_path, 3)
    manifest = json.loads((tmp_path / "t" / MANIFEST).read_text())
    shapes = {name: tuple(tensor["shape"]) for name, tensor in manifest["tensors"].items()}
    escaped = {"dotted.name/with/slash%": "dotted.name%2Fwith%2Fslash%25"}
    assert shapes == {f"model/weights/{escaped.get(n, n)}": tuple(t.shape) for n, t in weights().items()}
    elements = sum(t.nbytes for t in weights().values())
    stored = sum(f.stat().st_size for f in (tmp_path / "t").glob("*.safetensors"))
    assert elements <= stored < elements + 3 * 2500


def test_plain_tensors_and_boxes_read_each_other(tmp_path: Path) -> None:
    write(tmp_path, 2)
    whole = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    state = {"weights": whole, "plain": None}
    load(tmp_path, tag="t", parts=[CheckpointPart("model", 1, lambda: state, lambda s: None)], group=single())
    assert all(torch.equal(whole[name], tensor) for name, tensor in weights().items())


def test_replicated_tensors_are_written_once_by_the_lowest_rank(tmp_path: Path) -> None:
    tensor = torch.randn(1000)
    part = CheckpointPart("model", 1, lambda: {"w": tensor, "b": Boxes.whole("b", tensor)}, lambda s: None)
    every(run_threads(4, lambda g: save(tmp_path, tag="t", parts=[part], group=g)))
    assert [file.name for file in (tmp_path / "t").glob("*.safetensors")] == ["model-00000.safetensors"]


def test_ranks_may_hold_different_tensors_and_data(tmp_path: Path) -> None:
    """As pipeline stages do: the checkpoint is the union, each rank takes back its own."""

    def part(rank: int, seen: list[Any], value: float) -> CheckpointPart:
        state = {"layers": {str(rank): {"w": torch.full((2,), value), "steps": rank}}}
        return CheckpointPart("model", 1, lambda: state, seen.append)

    every(run_threads(2, lambda g: save(tmp_path, tag="t", parts=[part(g.rank, [], 1.0 + g.rank)], group=g)))
    seen: list[list[Any]] = [[], []]
    every(run_threads(2, lambda g: load(tmp_path, tag="t", parts=[part(g.rank, seen[g.rank], 0.0)], group=g)))
    for rank in (0, 1):
        layers = seen[rank][0]["layers"]
        assert layers[str(rank)]["w"].tolist() == [1.0 + rank] * 2
        assert layers[str(1 - rank)] == {"steps": 1 - rank}


def test_elements_that_no_rank_holds_are_refused(tmp_path: Path) -> None:
    part = CheckpointPart("model", 1, lambda: {"w": Boxes("w", (4,), torch.float32, ((1, torch.zeros(3)),))}, print)
    with pytest.raises(CheckpointError, match=r"model/w \(4,\): 3 of 4 elements"):
        save(tmp_path, tag="t", parts=[part], group=single())
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_overlap_or_disagree_are_refused(tmp_path: Path) -> None:
    def part(rank: int) -> CheckpointPart:
        pieces = ((rank, torch.zeros(3)),)
        return CheckpointPart("model", 1, lambda: {"w": Boxes("w", (4,), torch.float32, pieces)}, print)

    for error in run_threads(2, lambda g: save(tmp_path, tag="t", parts=[part(g.rank)], group=g)):
        assert isinstance(error, CheckpointError)
        assert "model/w" in str(error)

    def shaped(rank: int) -> CheckpointPart:
        return CheckpointPart("model", 1, lambda: {"w": torch.zeros(2 + rank)}, print)

    for error in run_threads(2, lambda g: save(tmp_path, tag="t", parts=[shaped(g.rank)], group=g)):
        assert "ranks disagree" in str(error)
        assert "model/w is (2,) float32 and (3,) float32" in str(error)


def test_one_process_without_a_process_group(tmp_path: Path) -> None:
    whole = weights()
    save(tmp_path, tag="t", parts=[Holder(whole, rank=0, size=1).part()], group=Collectives())
    read(tmp_path, 2)
