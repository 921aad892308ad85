"""Whole fp32 weights out of a checkpoint, with torch alone: no process group, no engine, no plugin."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dsx.checkpoint.datafile import Entry, write_file
from dsx.checkpoint.manifest import MANIFEST
from dsx.checkpoint.source import Source
from dsx.checkpoint.stores import DirectoryStore
from dsx.checkpoint.torn import check_files, choose_tag, read_manifest
from dsx.errors import CheckpointError

MODEL_PART = "model"
"""The part whose tensors are the model's weights and buffers: their last key is the name in the module."""


def read_full(path: str | Path, tag: str | None = None, *, part: str = MODEL_PART) -> dict[str, Tensor]:
    """Weights and buffers by name, whole, on the host; floating-point ones in fp32.

    path: the folder given to ``save``, or one checkpoint's own folder. tag: else what ``latest`` names. Tied weights
    appear under each of their names and share memory. A torn checkpoint is a CheckpointError.
    """
    source = _open(Path(path), tag, part)
    names = source.manifest.names(part)
    whole = {name: source.empty(name) for name in names if name not in source.manifest.aliases}
    source.fill(whole)
    ready = {name: _cast(tensor, torch.float32) for name, tensor in whole.items()}
    return {_short(name): ready[source.manifest.resolve(name)] for name in names}


def export(path: str | Path, out: str | Path, *, tag: str | None = None, dtype: torch.dtype = torch.float32) -> Path:
    """Write the weights of a checkpoint as one ``.safetensors`` or ``.pt`` file, and give its path.

    dtype: of the floating-point tensors. Both kinds are read by the usual safe loaders (``weights_only=True``). A
    safetensors file is written one tensor at a time, so the host needs room for the largest only; it holds tied
    weights once for each name, since the layout has no word for them.
    """
    target = Path(out)
    if target.suffix not in (".safetensors", ".pt"):
        raise CheckpointError(f"cannot export to {target.name!r}: give a name that ends in .safetensors or .pt")
    beside = target.with_name(target.name + ".partial")
    if target.suffix == ".pt":
        torch.save({name: _cast(tensor, dtype) for name, tensor in read_full(path, tag).items()}, beside)
    else:
        source = _open(Path(path), tag, MODEL_PART)
        entries = [_entry(source, name, dtype) for name in source.manifest.names(MODEL_PART)]
        write_file(beside, entries, metadata={"format": "pt"})
    beside.replace(target)
    return target


def _open(path: Path, tag: str | None, part: str) -> Source:
    if tag is None and (path / MANIFEST).is_file():
        path, tag = path.parent, path.name
    store = DirectoryStore(path)
    chosen = choose_tag(store, tag)
    manifest = read_manifest(store, chosen)
    if part not in manifest.parts:
        raise CheckpointError(
            f"checkpoint {chosen!r} in {path} has no part {part!r}; it has {', '.join(manifest.parts)}"
        )
    files = [name for name, record in manifest.files.items() if record.part in ("", part)]
    check_files(store, manifest, files, contents=True)
    return Source(store, manifest)


def _entry(source: Source, name: str, dtype: torch.dtype) -> Entry:
    empty = _cast(source.empty(name, device="meta"), dtype)

    def fetch() -> Tensor:
        tensor = source.empty(name)
        source.fill({name: tensor})
        return _cast(tensor, dtype)

    return Entry(_short(name), empty.dtype, tuple(empty.shape), fetch)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _short(name: str) -> str:
    """The name in the module: the last key, whatever groups the part has made around it."""
    return name.rpartition("/")[2].replace("%2F", "/").replace("%25", "%")
