"""Reader and writer of chunks in a folder, for torch.distributed.checkpoint: data files and one index page.

torch's own file writer keeps its index as a pickle of classes and each chunk as an archive. These write raw tensors
(see ``datafile``) and plain JSON, so that opening a checkpoint can never run code.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from dsx.checkpoint.datafile import DTYPES, Entry, OpenFile, code_of, write_file
from dsx.checkpoint.files import write_text
from dsx.checkpoint.manifest import INDEX, FileRecord
from dsx.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk's bytes lie."""

    file: str
    offset: int


class FolderWriter(StorageWriter):
    """Writes this rank's chunks into one file a part, and on the coordinator the index."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.files: dict[str, FileRecord] = {}
        """The files this writer has finished."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.files = {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.files = {}

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        by_part: dict[str, list[WriteItem]] = defaultdict(list)
        for item in plan.items:
            by_part[item.index.fqn.partition("/")[0]].append(item)
        results: list[WriteResult] = []
        for part, items in by_part.items():
            results += self._write_part(part, items, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _write_part(self, part: str, items: list[WriteItem], planner: SavePlanner) -> list[WriteResult]:
        name = f"{part}-{self.rank:05d}.safetensors"
        entries = {item.index: _entry(item, planner) for item in items}
        written = write_file(self.folder / name, list(entries.values()), metadata={"format": "pt"})
        self.files[name] = FileRecord(written.bytes, written.crc32, part)
        results = []
        for index, entry in entries.items():
            offset, length = written.spans[entry.name]
            results.append(WriteResult(index=index, size_in_bytes=length, storage_data=Place(name, offset)))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for rank in results for result in rank}
        page = {}
        for name, tensor in metadata.state_dict_metadata.items():
            if not isinstance(tensor, TensorStorageMetadata):
                raise TypeError(f"{name} is no tensor: plain data goes into the manifest's pages")
            chunks = []
            for chunk in tensor.chunks:
                place = places[MetadataIndex(name, chunk.offsets)]
                chunks.append([list(chunk.offsets), list(chunk.sizes), place.file, place.offset])
            code = code_of(tensor.properties.dtype, where=name)
            page[name] = {"dtype": code, "shape": list(tensor.size), "chunks": chunks}
        self.files[INDEX] = write_text(self.folder / INDEX, json.dumps(page, separators=(",", ":")))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Path(checkpoint_id).parent.exists()


def _entry(item: WriteItem, planner: SavePlanner) -> Entry:
    data = item.tensor_data
    if data is None:
        raise TypeError(f"{item.index.fqn} is no tensor: plain data goes into the manifest's pages")
    shape, offsets = tuple(data.chunk.sizes), tuple(data.chunk.offsets)
    whole = shape == tuple(data.size)
    name = item.index.fqn if whole else f"{item.index.fqn}@{','.join(map(str, offsets))}"

    def fetch() -> torch.Tensor:
        tensor = planner.resolve_data(item)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    return Entry(name, data.properties.dtype, shape, fetch)


class FolderReader(StorageReader):
    """Reads the chunks that a plan asks for, and only their bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: Mapping[MetadataIndex, Place] = {}
        self._stored: Mapping[str, TensorStorageMetadata] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._places, self._stored = {}, {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = self.folder / INDEX
        stored: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, Place] = {}
        try:
            for name, record in json.loads(path.read_text(encoding="utf-8")).items():
                chunks = []
                for offsets, sizes, file, offset in record["chunks"]:
                    chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                    places[MetadataIndex(name, torch.Size(offsets))] = Place(file, offset)
                properties = TensorProperties(dtype=DTYPES[record["dtype"]])
                stored[name] = TensorStorageMetadata(properties, torch.Size(record["shape"]), chunks)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        return Metadata(dict(stored), storage_data=places)

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._places = metadata.storage_data
        self._stored = {
            name: tensor
            for name, tensor in metadata.state_dict_metadata.items()
            if isinstance(tensor, TensorStorageMetadata)
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_file[self._places[item.storage_index].file].append(item)
        for file, items in by_file.items():
            self._read_file(file, items, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_file(self, file: str, items: list[ReadItem], planner: LoadPlanner) -> None:
        opened = OpenFile(self.folder / file)
        for item in sorted(items, key=lambda item: self._places[item.storage_index].offset):
            stored = self._stored[item.storage_index.fqn]
            sizes = _sizes_at(stored, item.storage_index)
            chunk = opened.tensor(
                offset=self._places[item.storage_index].offset, dtype=stored.properties.dtype, shape=sizes
            )
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                chunk = chunk.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(chunk)
            planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return (Path(checkpoint_id) / INDEX).is_file()


def _sizes_at(stored: TensorStorageMetadata, index: MetadataIndex) -> torch.Size:
    hint = index.index
    if hint is not None and hint < len(stored.chunks) and stored.chunks[hint].offsets == index.offset:
        return stored.chunks[hint].sizes
    return next(chunk.sizes for chunk in stored.chunks if chunk.offsets == index.offset)
