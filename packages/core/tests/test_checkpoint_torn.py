"""Torn checkpoints, other models and failing ranks: one error that names what to do, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dsx.checkpoint.consolidate import read_full
from dsx.checkpoint.load import load
from dsx.checkpoint.save import save
from dsx.checkpoint.stores import DirectoryStore
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart
from dsx.testing.threads import Holder, every, run_threads, single

DATA = "model-00000.safetensors"


def whole(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.full((4, 3), value), "layer.bias": torch.full((5,), value)}


def write(root: Path, tag: str, *, value: float = 1.0, **options: Any) -> Path:
    return save(root, tag=tag, parts=[Holder(whole(value), rank=0, size=1).part()], group=single(), **options)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


FAULTS = [
    ("manifest.json", Path.unlink, "manifest.json cannot be read"),
    ("manifest.json", lambda path: path.write_text(path.read_text()[:40]), "manifest.json is torn"),
    ("manifest.json", lambda path: path.write_text("{}"), "manifest.json is torn"),
    (DATA, Path.unlink, f"file {DATA} is missing"),
    (DATA, truncate, rf"file {DATA} has \d+ bytes, \d+ were written"),
    (DATA, flip, rf"file {DATA} has checksum [0-9a-f]+, [0-9a-f]+ was written"),
    ("index.json", flip, "file index.json has checksum"),
    ("state.json", truncate, "file state.json has"),
    ("client.json", Path.unlink, "file client.json is missing"),
]


@pytest.mark.parametrize(("name", "damage", "message"), FAULTS)
def test_a_torn_checkpoint_names_file_and_last_good_tag(tmp_path: Path, name: str, damage: Any, message: str) -> None:
    write(tmp_path, "old")
    write(tmp_path, "good", value=2.0)
    damage(write(tmp_path, "torn", value=3.0) / name)
    holder = Holder(whole(9.0), rank=0, size=1)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path, parts=[holder.part()], group=single())
    assert "load it with tag='good'" in str(caught.value)
    assert holder.equals(whole(9.0))
    with pytest.raises(CheckpointError, match=message):
        read_full(tmp_path)
    load(tmp_path, tag="good", parts=[holder.part()], group=single())
    assert holder.equals(whole(2.0))


def test_without_verify_sizes_are_compared_still(tmp_path: Path) -> None:
    truncate(write(tmp_path, "t") / DATA)
    with pytest.raises(CheckpointError, match="There is no other good one"):
        load(tmp_path, parts=[Holder(whole(), rank=0, size=1).part()], group=single(), verify=False)


def test_a_fault_that_one_rank_finds_is_raised_by_all(tmp_path: Path) -> None:
    flip(write(tmp_path, "t") / DATA)
    errors = run_threads(3, lambda g: load(tmp_path, parts=[Holder(whole(), rank=g.rank, size=3).part()], group=g))
    assert all(isinstance(error, CheckpointError) and f"file {DATA} has checksum" in str(error) for error in errors)


def test_nothing_to_load_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file 'latest', and no tag is given; it holds no checkpoint at all"):
        load(tmp_path / "nowhere", parts=[], group=single())
    write(tmp_path, "a", latest=False)
    assert not (tmp_path / "latest").exists()
    with pytest.raises(CheckpointError, match="it holds a: give one as tag"):
        load(tmp_path, parts=[], group=single())
    with pytest.raises(CheckpointError, match=r"no checkpoint 'b' in .*tags there: a\. The last good one is 'a'"):
        load(tmp_path, tag="b", parts=[], group=single())


def test_latest_names_the_newest_and_can_be_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b", value=2.0, latest=False)
    assert DirectoryStore(tmp_path).latest() == "a"
    assert DirectoryStore(tmp_path).tags() == ["a", "b"]
    assert load(tmp_path, parts=[], group=single()).tag == "a"


def test_another_model_is_one_error_with_every_difference(tmp_path: Path) -> None:
    write(tmp_path, "t", value=3.0)
    other = {"layer.weight": torch.zeros(4, 4), "layer.bias_": torch.zeros(5), "extra": torch.zeros(1)}
    for size in (1, 2):
        holders = [Holder(other, rank=rank, size=size) for rank in range(size)]
        errors = run_threads(size, lambda g, holders=holders: load(tmp_path, parts=[holders[g.rank].part()], group=g))
        for holder, error in zip(holders, errors, strict=True):
            assert isinstance(error, CheckpointError)
            text = str(error)
            assert (
                "missing (in this model, not in the checkpoint): model/weights/extra; model/weights/layer.bias_" in text
            )
            assert "(did you mean 'layer.bias'?)" in text
            assert "unexpected (in the checkpoint, not in this model): model/weights/layer.bias" in text
            assert (
                "model/weights/layer.weight is (4, 3) float32 in the checkpoint, (4, 4) float32 in this model" in text
            )
            assert "Nothing was changed" in text
            assert holder.equals(other)


def test_not_strict_leaves_missing_and_skips_unexpected(tmp_path: Path) -> None:
    write(tmp_path, "t", value=3.0)
    holder = Holder({"layer.bias": torch.zeros(5), "extra": torch.full((2,), 8.0)}, rank=0, size=1)
    load(tmp_path, parts=[holder.part(), holder.part("absent")], group=single(), strict=False)
    assert holder.equals({"layer.bias": torch.full((5,), 3.0), "extra": torch.full((2,), 8.0)})
    narrow = Holder({"layer.bias": torch.zeros(6)}, rank=0, size=1)
    with pytest.raises(CheckpointError, match=r"is \(5,\) float32 in the checkpoint, \(6,\)"):
        load(tmp_path, parts=[narrow.part()], group=single(), strict=False)


def test_other_kind_of_number_is_refused(tmp_path: Path) -> None:
    save(tmp_path, tag="t", parts=[CheckpointPart("model", 1, lambda: {"n": torch.tensor([1])}, print)], group=single())
    with pytest.raises(CheckpointError, match=r"model/n is \(1,\) int64 in the checkpoint, \(1,\) float32"):
        load(tmp_path, parts=[CheckpointPart("model", 1, lambda: {"n": torch.zeros(1)}, print)], group=single())


def test_weights_alone_do_not_touch_the_other_parts_files(tmp_path: Path) -> None:
    parts = [Holder(whole(), rank=0, size=1).part(), Holder(whole(), rank=0, size=1).part("optimizer", optimizer=True)]
    path = save(tmp_path, tag="t", parts=parts, group=single())
    (path / "optimizer-00000.safetensors").unlink()
    holder = Holder(whole(0.0), rank=0, size=1)
    found = load(tmp_path, parts=[holder.part(), parts[1]], only={"model"}, group=single())
    assert holder.equals(whole())
    assert found.ignored == ("optimizer",)
    with pytest.raises(CheckpointError, match=r"file optimizer-00000.safetensors is missing"):
        load(tmp_path, parts=parts, group=single())


def test_missing_part_and_later_versions(tmp_path: Path) -> None:
    holder = Holder(whole(), rank=0, size=1)
    path = save(tmp_path, tag="t", parts=[holder.part(version=2)], group=single())
    with pytest.raises(CheckpointError, match="part 'curriculum' is missing; the checkpoint has model"):
        load(tmp_path, parts=[holder.part(version=2), holder.part("curriculum")], group=single())
    with pytest.raises(CheckpointError, match="part 'model' has version 2, at most 1 is understood"):
        load(tmp_path, parts=[holder.part(version=1)], group=single())
    assert load(tmp_path, parts=[holder.part(version=3)], group=single()).versions == {"model": 2}
    page = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(page | {"format": 99}))
    with pytest.raises(CheckpointError, match="is of checkpoint format 99"):
        load(tmp_path, parts=[holder.part(version=2)], group=single())


@pytest.mark.parametrize(
    "tag", ["", " ", "../up", "a/b", "a\\b", ".hidden", "latest", "x.partial", "x.old", "a\n", "x" * 201]
)
def test_tags_that_are_no_folder_names_are_refused(tmp_path: Path, tag: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be a checkpoint's tag"):
        write(tmp_path, tag)
    assert list(tmp_path.iterdir()) == []


def test_ranks_with_different_tags_are_refused(tmp_path: Path) -> None:
    errors = run_threads(2, lambda g: save(tmp_path, tag=f"t{g.rank}", parts=[], group=g))
    assert all("different tags: t0, t1" in str(error) for error in errors)


@pytest.mark.parametrize("name", ["", "client", "a/b", "a.b"])
def test_part_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot name a checkpoint part"):
        save(tmp_path, tag="t", parts=[CheckpointPart(name, 1, dict, print)], group=single())


class Failing(DirectoryStore):
    """Fails on one rank in one phase."""

    def __init__(self, root: Path, phase: str) -> None:
        super().__init__(root)
        self.phase = phase

    def begin(self, tag: str) -> None:
        super().begin(tag)
        if self.phase == "begin":
            raise OSError(28, "No space left on device")

    def writer(self, tag: str, *, rank: int = 0) -> Any:
        if self.phase == "write" and rank == 1:
            raise OSError(28, "No space left on device")
        return super().writer(tag, rank=rank)

    def commit(self, tag: str, *, latest: bool) -> None:
        if self.phase == "commit":
            raise OSError(28, "No space left on device")
        super().commit(tag, latest=latest)


@pytest.mark.parametrize("phase", ["begin", "write", "commit"])
def test_when_one_rank_fails_all_raise_and_the_old_one_stays(tmp_path: Path, phase: str) -> None:
    def saved(group: Any, value: float, store: DirectoryStore) -> None:
        parts = [Holder(whole(value), rank=group.rank, size=3).part()]
        save(tmp_path, tag="t", parts=parts, group=group, store=store)

    every(run_threads(3, lambda g: saved(g, 1.0, DirectoryStore(tmp_path))))
    errors = run_threads(3, lambda g: saved(g, 2.0, Failing(tmp_path, phase)))
    assert all(isinstance(error, CheckpointError) and "No space left on device" in str(error) for error in errors)
    rank = 1 if phase == "write" else 0
    assert all(f"(rank {rank} of 3; 1 failed)" in str(error) for error in errors)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest", "t"]
    assert torch.equal(read_full(tmp_path)["layer.bias"], torch.ones(5))
