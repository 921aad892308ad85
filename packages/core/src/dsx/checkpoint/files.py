"""Files and folders that are on the disk when the call returns, or are not there at all."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from dsx.checkpoint.manifest import FileRecord


def write_text(path: Path, text: str) -> FileRecord:
    """Write a new file and wait until the disk has it."""
    data = text.encode()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(len(data), zlib.crc32(data))


def replace_text(path: Path, text: str) -> None:
    """Give a file new content in one step: a reader sees the old or the new, never a part."""
    beside = path.with_name(path.name + ".new")
    write_text(beside, text)
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
