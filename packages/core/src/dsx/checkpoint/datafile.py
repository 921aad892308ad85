"""Files of named tensors in the safetensors layout: a length, a JSON header, then raw little-endian elements.

Such a file holds tensors and nothing else, is readable by every safetensors library, and any part of it can be read
without the rest.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from dsx.errors import CheckpointError

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""The layout's names of number formats."""

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_BLOCK = 16 * 2**20


def code_of(dtype: torch.dtype, *, where: str) -> str:
    """The layout's name of a dtype; a CheckpointError where it has none."""
    if dtype not in _CODES:
        raise CheckpointError(f"{where} is {dtype}, which a checkpoint cannot hold; wanted one of {', '.join(DTYPES)}")
    return _CODES[dtype]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to write, fetched when its turn comes so that the host holds one copy at a time."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    fetch: Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file: its size, its CRC-32, and where each tensor's bytes lie."""

    bytes: int
    crc32: int
    spans: Mapping[str, tuple[int, int]]
    """Name -> (offset in the file, length), in bytes."""


class _Sink:
    """A file that adds up what passes through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.bytes, self.crc32 = file, 0, 0

    def write(self, data: Any) -> None:
        self.file.write(data)
        self.bytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)


def write_file(path: Path, entries: Sequence[Entry], *, metadata: Mapping[str, str]) -> Written:
    """Write tensors to a new file and wait until the disk has it."""
    # Wide elements first, so that every tensor lies at a multiple of its element size.
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for entry in ordered:
        length = _length(entry)
        header[entry.name] = {
            "dtype": code_of(entry.dtype, where=entry.name),
            "shape": list(entry.shape),
            "data_offsets": [at, at + length],
        }
        at += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    spans = {}
    with path.open("wb") as file:
        sink = _Sink(file)
        sink.write(len(text).to_bytes(8, "little"))
        sink.write(text)
        for entry in ordered:
            spans[entry.name] = (sink.bytes, _length(entry))
            _write_tensor(sink, entry)
        file.flush()
        os.fsync(file.fileno())
    return Written(sink.bytes, sink.crc32, spans)


def _length(entry: Entry) -> int:
    return torch.Size(entry.shape).numel() * entry.dtype.itemsize


def _write_tensor(sink: _Sink, entry: Entry) -> None:
    if not _length(entry):
        return
    tensor = entry.fetch().detach()
    if tensor.dtype != entry.dtype or tuple(tensor.shape) != entry.shape:
        raise CheckpointError(
            f"{entry.name} changed while it was written: {tensor.dtype} {tuple(tensor.shape)}, planned as {entry}"
        )
    raw: Any = tensor.to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    view = memoryview(raw)
    for start in range(0, len(view), _BLOCK):
        sink.write(view[start : start + _BLOCK])


def checksum(path: Path) -> int:
    """CRC-32 of a whole file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


class OpenFile:
    """A data file mapped for reading."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # Copy-on-write: torch wants a writable buffer, and the file must never be written.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, *, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """A view of one tensor's bytes; valid as long as anybody holds it."""
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(tuple(shape), dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(tuple(shape))
