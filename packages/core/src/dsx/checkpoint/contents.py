"""What all ranks together put into a checkpoint, known on each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsx.checkpoint import plain
from dsx.checkpoint.boxes import Boxes
from dsx.checkpoint.carrier import Carrier
from dsx.checkpoint.datafile import code_of
from dsx.checkpoint.manifest import CLIENT_PART, TensorRecord
from dsx.checkpoint.together import unique
from dsx.checkpoint.tree import Lifted, lift
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart

if TYPE_CHECKING:
    from dsx.comm.collectives import Collectives


@dataclass(frozen=True, slots=True)
class Contents:
    """The union over ranks of part versions, plain data and tensor names."""

    versions: Mapping[str, int]
    trees: Mapping[str, Any]
    """Part -> plain tree with ``Ref`` for tensors. Where ranks differ, the lowest rank that has an entry gives it."""
    tensors: dict[str, TensorRecord]
    aliases: dict[str, str]


def lift_parts(parts: Sequence[CheckpointPart]) -> dict[str, Lifted]:
    """Each part's state taken apart; a CheckpointError where names clash."""
    lifted: dict[str, Lifted] = {}
    for part in parts:
        if part.name in lifted or part.name == CLIENT_PART or not part.name or set(part.name) & set("/@%. "):
            raise CheckpointError(
                f"{part.name!r} cannot name a checkpoint part: it is taken, empty, or holds one of / @ % . or a space"
            )
        lifted[part.name] = lift(part.name, part.state())
    return lifted


def carriers(leaves: Mapping[str, Tensor | Boxes]) -> dict[str, Tensor]:
    """The leaves as tensors that torch.distributed.checkpoint's planners take apart into chunks."""
    return {name: _carrier(name, leaf) for name, leaf in leaves.items()}


def _carrier(name: str, leaf: Tensor | Boxes) -> Tensor:
    if isinstance(leaf, Boxes):
        return Carrier(leaf)
    if hasattr(leaf, "__create_write_items__"):  # a DTensor knows its own chunks
        return leaf
    return Carrier(Boxes.whole(name, leaf))


def record_of(leaf: Tensor | Boxes) -> TensorRecord:
    """Global shape and dtype of a leaf."""
    return TensorRecord(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))


def describe(lifted: Mapping[str, Lifted], *, versions: Mapping[str, int]) -> str:
    """One rank's share of the contents as text, equal on ranks that hold parts of the same tensors."""
    page: dict[str, Any] = {"versions": dict(versions), "trees": {}, "tensors": {}, "aliases": {}}
    for part, state in lifted.items():
        page["trees"][part] = plain.dumps(state.tree, where=part)
        page["aliases"] |= state.aliases
        for name, leaf in state.leaves.items():
            code_of(leaf.dtype, where=name)
            record = record_of(leaf)
            page["tensors"][name] = [list(record.shape), record.dtype]
    return json.dumps(page)


def agree(text: str, *, group: Collectives, site: str) -> Contents:
    """The union of all ranks' contents; a CheckpointError where ranks speak of different tensors by one name."""
    versions: dict[str, int] = {}
    trees: dict[str, Any] = {}
    tensors: dict[str, TensorRecord] = {}
    aliases: dict[str, str] = {}
    clashes: list[str] = []
    for share in unique(text, group=group, site=site):
        page = json.loads(share)
        for part, version in page["versions"].items():
            if versions.setdefault(part, version) != version:
                clashes.append(f"part {part!r} has version {versions[part]} and version {version}")
        for part, tree in page["trees"].items():
            decoded = plain.loads(tree, where=part)
            trees[part] = plain.merge(trees[part], decoded) if part in trees else decoded
        for name, (shape, dtype) in page["tensors"].items():
            record = TensorRecord(tuple(shape), dtype)
            if tensors.setdefault(name, record) != record:
                clashes.append(f"{name} is {tensors[name].shape} {tensors[name].dtype} and {record.shape} {dtype}")
        aliases |= page["aliases"]
    clashes += [f"{name} is a tensor and an alias" for name in aliases if name in tensors]
    if clashes:
        raise CheckpointError("ranks disagree on what a checkpoint holds: " + "; ".join(sorted(clashes)))
    return Contents(versions, trees, tensors, aliases)


def dtype_of(record: TensorRecord) -> torch.dtype:
    """The dtype that a record names."""
    dtype = getattr(torch, record.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{record.dtype!r} is no dtype of torch {torch.__version__}")
    return dtype
