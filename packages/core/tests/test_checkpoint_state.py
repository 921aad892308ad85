"""What a part and a client give is what they get: plain data, tensors, aliases, in any phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dsx.checkpoint import Alias
from dsx.checkpoint.consolidate import export, read_full
from dsx.checkpoint.datafile import DTYPES, OpenFile
from dsx.checkpoint.load import load
from dsx.checkpoint.save import save
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart
from dsx.testing.threads import Holder, single


def part_of(state: Any, *, name: str = "model", version: int = 1, seen: list[Any] | None = None) -> CheckpointPart:
    return CheckpointPart(name, version, lambda: state, [].append if seen is None else seen.append)


def test_nested_state_comes_back(tmp_path: Path) -> None:
    state = {"groups": [{"lr": 0.1, "betas": (0.9, 0.95)}], "state": {0: {"step": 3, "exp_avg": torch.ones(3)}}}
    save(tmp_path, tag=7, parts=[part_of(state)], group=single())
    seen: list[Any] = []
    fresh = {"groups": [{"lr": 0.0, "betas": (0.0, 0.0)}], "state": {0: {"step": 0, "exp_avg": torch.zeros(3)}}}
    load(tmp_path, tag=7, parts=[part_of(fresh, seen=seen)], group=single())
    assert seen[0]["groups"] == state["groups"]
    assert seen[0]["state"][0]["step"] == 3
    assert seen[0]["state"][0]["exp_avg"] is fresh["state"][0]["exp_avg"]
    assert torch.equal(fresh["state"][0]["exp_avg"], torch.ones(3))


def test_none_in_the_template_takes_whatever_was_stored(tmp_path: Path) -> None:
    save(
        tmp_path, tag="t", parts=[part_of({"optimizer": {"a": [torch.ones(2), 5]}, "w": torch.ones(1)})], group=single()
    )
    seen: list[Any] = []
    load(tmp_path, tag="t", parts=[part_of({"optimizer": None, "w": torch.zeros(1)}, seen=seen)], group=single())
    assert torch.equal(seen[0]["optimizer"]["a"][0], torch.ones(2))
    assert seen[0]["optimizer"]["a"][1] == 5


def test_client_state_is_kept_apart_from_the_parts(tmp_path: Path) -> None:
    """B41: plain data and tensors only, and no merge into the engine's own keys."""
    client = {
        "model": "mine",
        "epoch": 2,
        "rng": torch.get_rng_state(),
        "table": np.arange(6).reshape(2, 3),
        "deep": [(1,)],
    }
    state = {"w": torch.ones(2), "epoch": 9}
    save(tmp_path, tag="t", parts=[part_of(state)], group=single(), client_state=client, meta={"stage": 2})
    found = load(tmp_path, parts=[part_of({"w": torch.zeros(2), "epoch": 0})], group=single())
    assert torch.equal(found.client_state.pop("rng"), client["rng"])
    np.testing.assert_array_equal(found.client_state.pop("table"), client["table"])
    assert found.client_state == {"model": "mine", "epoch": 2, "deep": [(1,)]}
    assert (found.tag, found.meta, found.versions, found.ignored) == ("t", {"stage": 2}, {"model": 1}, ())


def test_client_state_that_needs_pickling_is_refused(tmp_path: Path) -> None:
    """B41: refused by its place, before anything is written."""
    with pytest.raises(CheckpointError, match=r"client/args is a .*Linear"):
        save(tmp_path, tag="t", parts=[part_of({})], group=single(), client_state={"args": nn.Linear(1, 1)})
    assert list(tmp_path.iterdir()) == []


def test_files_hold_only_tensors_and_json(tmp_path: Path) -> None:
    """B41: every file is JSON or safetensors, so no reader can be made to run code."""
    state = {"w": torch.ones(2), "b": torch.ones(3, dtype=torch.bfloat16)}
    path = save(tmp_path, tag="t", parts=[part_of(state)], group=single(), client_state={"epoch": 2})
    assert sorted(file.name for file in path.iterdir()) == [
        "client.json", "index.json", "manifest.json", "model-00000.safetensors", "state.json",
    ]  # fmt: skip
    raw = (path / "model-00000.safetensors").read_bytes()
    header = int.from_bytes(raw[:8], "little")
    assert raw[8 : 8 + header].lstrip().startswith(b'{"__metadata__"')
    assert len(raw) == 8 + header + 8 + 6
    assert (
        OpenFile(path / "model-00000.safetensors").tensor(offset=8 + header, dtype=torch.float32, shape=(2,)).sum() == 2
    )


def test_tied_weights_are_aliases(tmp_path: Path) -> None:
    """B43: both names come back and are equal; an unrelated tensor of equal value is not tied."""
    state = {"first": torch.zeros(2, 2), "one.weight": torch.ones(2, 2), "two.weight": Alias("one.weight")}
    path = save(tmp_path, tag="t", parts=[part_of(state)], group=single())
    whole = read_full(tmp_path)
    assert list(whole) == ["first", "one.weight", "two.weight"]
    assert whole["two.weight"].data_ptr() == whole["one.weight"].data_ptr()
    assert whole["first"].data_ptr() != whole["one.weight"].data_ptr()
    assert torch.equal(whole["one.weight"], torch.ones(2, 2))
    assert torch.equal(read_full(path)["first"], torch.zeros(2, 2))
    # An untied model reads the tied weight under both names, a tied one under its own first name.
    untied = {name: torch.full((2, 2), 7.0) for name in whole}
    load(tmp_path, parts=[part_of(untied)], group=single())
    assert torch.equal(untied["two.weight"], torch.ones(2, 2))
    turned = {"first": torch.zeros(2, 2), "two.weight": torch.zeros(2, 2), "one.weight": Alias("two.weight")}
    load(tmp_path, parts=[part_of(turned)], group=single())
    assert torch.equal(turned["two.weight"], torch.ones(2, 2))


def test_alias_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="alias of model/nobody"):
        save(tmp_path, tag="t", parts=[part_of({"a": Alias("nobody")})], group=single())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_export_loads_strictly_into_the_module(tmp_path: Path, suffix: str) -> None:
    """B43: names of tied weights included. B41: read by the safe loader."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    state = model.state_dict() | {"1.weight": Alias("weights/0.weight")}
    save(tmp_path, tag="t", parts=[part_of({"weights": state})], group=single())
    out = export(tmp_path, tmp_path / f"out{suffix}")
    whole = torch.load(out, weights_only=True) if suffix == ".pt" else _read_safetensors(out)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    other.load_state_dict(whole, strict=True)
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert not list(tmp_path.glob("*.partial"))


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    import json

    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__")
    return {
        name: torch.frombuffer(bytearray(raw[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]]),
                               dtype=DTYPES[t["dtype"]]).view(t["shape"])
        for name, t in header.items()
    }  # fmt: skip


def test_export_refuses_other_suffixes_and_other_parts(tmp_path: Path) -> None:
    save(tmp_path, tag="t", parts=[part_of({"w": torch.ones(1)}, name="other")], group=single())
    with pytest.raises(CheckpointError, match=r"ends in \.safetensors or \.pt"):
        export(tmp_path, tmp_path / "out.bin")
    with pytest.raises(CheckpointError, match="no part 'model'; it has other"):
        read_full(tmp_path)


def test_export_keeps_integers_and_casts_floats(tmp_path: Path) -> None:
    save(tmp_path, tag="t", parts=[part_of({"w": torch.ones(2).bfloat16(), "n": torch.tensor(3)})], group=single())
    assert {name: tensor.dtype for name, tensor in read_full(tmp_path).items()} == {
        "w": torch.float32,
        "n": torch.int64,
    }
    half = torch.load(export(tmp_path, tmp_path / "h.pt", dtype=torch.float16), weights_only=True)
    assert half["w"].dtype == torch.float16


def test_save_load_save_writes_equal_files(tmp_path: Path) -> None:
    """B37: load right after save and save right after load need no step between."""
    whole = {"w": torch.randn(5, 3), "e": torch.zeros(0)}
    holder = Holder(whole, rank=0, size=1)
    first = save(tmp_path, tag="a", parts=[holder.part()], group=single())
    load(tmp_path, parts=[holder.part()], group=single())
    second = save(tmp_path, tag="b", parts=[holder.part()], group=single())
    for name in ("model-00000.safetensors", "state.json", "index.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_load_into_used_state_restores_it_each_time(tmp_path: Path) -> None:
    """B38: what was trained since is gone, and the same is loaded twice."""
    whole = {"w": torch.randn(4)}
    holder = Holder(whole, rank=0, size=1)
    save(tmp_path, tag="a", parts=[holder.part()], group=single())
    for _ in range(2):
        holder.held["w"][2].add_(1)
        holder.plain = {"step": 99}
        load(tmp_path, parts=[holder.part()], group=single())
        assert holder.equals(whole)
        assert holder.plain == {"step": 3}


def test_saving_changes_nothing(tmp_path: Path) -> None:
    """B39: live weights, gradients in the middle of accumulation and the random state are as before."""
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    before = [t.clone() for p in model.parameters() for t in (p.detach(), p.grad)]
    rng = torch.get_rng_state()
    save(tmp_path, tag="a", parts=[part_of(dict(model.named_parameters()))], group=single())
    assert torch.equal(torch.get_rng_state(), rng)
    after = [t for p in model.parameters() for t in (p.detach(), p.grad)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    load(tmp_path, parts=[part_of(dict(model.named_parameters()))], group=single())
    assert model.weight.requires_grad
    assert torch.equal(model.weight.grad, before[1])


def test_stored_format_converts_between_float_formats(tmp_path: Path) -> None:
    save(tmp_path, tag="t", parts=[part_of({"w": torch.full((3,), 1.5)})], group=single())
    narrow = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    load(tmp_path, parts=[part_of(narrow)], group=single())
    assert narrow["w"].tolist() == [1.5] * 3


def test_arrays_are_filled_in_place(tmp_path: Path) -> None:
    save(tmp_path, tag="t", parts=[part_of({"keys": np.arange(4, dtype=np.uint32)})], group=single())
    keys = np.zeros(4, dtype=np.uint32)
    seen: list[Any] = []
    load(tmp_path, parts=[part_of({"keys": keys}, seen=seen)], group=single())
    assert isinstance(seen[0]["keys"], np.ndarray)
    assert keys.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_number_format_keeps_its_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    save(tmp_path, tag="t", parts=[part_of({"w": tensor, "odd": torch.ones(3, dtype=torch.bool)})], group=single())
    back = torch.zeros_like(tensor)
    load(tmp_path, parts=[part_of({"w": back, "odd": None})], group=single())
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_a_format_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model/w is torch\.complex128, which a checkpoint cannot hold"):
        save(tmp_path, tag="t", parts=[part_of({"w": torch.ones(1, dtype=torch.complex128)})], group=single())


def test_a_folder_renamed_by_hand_is_still_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, tag="t", parts=[part_of({"w": torch.ones(2)})], group=single()).rename(tmp_path / "best")
    state = {"w": torch.zeros(2)}
    assert load(tmp_path, tag="best", parts=[part_of(state)], group=single()).tag == "best"
    assert state["w"].tolist() == [1.0, 1.0]
