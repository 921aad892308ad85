"""Where checkpoints are kept: a folder on a file system that all ranks see.

A checkpoint is written into ``<tag>.partial`` and renamed to ``<tag>`` when it is whole. Where the tag exists, it is
first moved to ``<tag>.old``, which is removed at the end; a reader that finds only ``<tag>.old`` reads that. So at
every instant the last good checkpoint can be read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dsx.checkpoint.datafile import checksum
from dsx.checkpoint.files import replace_text, sync_folder, write_text
from dsx.checkpoint.manifest import MANIFEST, FileRecord
from dsx.checkpoint.storage import FolderReader, FolderWriter
from dsx.errors import CheckpointError

LATEST = "latest"
PARTIAL, OLD = ".partial", ".old"
_LONGEST = 200


def check_tag(tag: object) -> str:
    """The tag as a folder's name; a CheckpointError where it cannot be one."""
    text = str(tag)
    why = ""
    if not text or text != text.strip() or not text.isprintable():
        why = "it is empty, begins or ends with a space, or holds control characters"
    elif any(sign in text for sign in '/\\:*?"<>|'):
        why = 'it holds one of / \\ : * ? " < > |'
    elif text.startswith(".") or text.endswith((PARTIAL, OLD, ".")) or text == LATEST:
        why = f"a tag may not begin or end with a dot, end in {PARTIAL} or {OLD}, or be {LATEST!r}"
    elif len(text.encode()) > _LONGEST:
        why = f"it has more than {_LONGEST} bytes"
    if why:
        raise CheckpointError(f"{text!r} cannot be a checkpoint's tag: {why}. Give a name such as 'step-100'")
    return text


class DirectoryStore:
    """Checkpoints as folders below a root. Every rank writes; begin, commit and abort are called on one."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def describe(self) -> str:
        """The root, for messages."""
        return str(self.root)

    def writer(self, tag: str, *, rank: int = 0) -> FolderWriter:
        """Writes one rank's tensors into the checkpoint that was begun."""
        return FolderWriter(self._partial(tag), rank=rank)

    def reader(self, tag: str) -> FolderReader:
        """Reads tensors of a finished checkpoint."""
        return FolderReader(self.folder(tag))

    def write_text(self, tag: str, name: str, text: str) -> FileRecord:
        """Add a page to the checkpoint that was begun."""
        return write_text(self._partial(tag) / name, text)

    def read_text(self, tag: str, name: str) -> str:
        """A page of a finished checkpoint."""
        return (self.folder(tag) / name).read_text(encoding="utf-8")

    def measure(self, tag: str, name: str, *, contents: bool) -> FileRecord | None:
        """Size and, if asked for, CRC-32 (else 0) of a finished checkpoint's file; ``None`` where it is absent."""
        path = self.folder(tag) / name
        if not path.is_file():
            return None
        return FileRecord(path.stat().st_size, checksum(path) if contents else 0)

    def begin(self, tag: str) -> None:
        """Make an empty place for a checkpoint, and mend what a killed commit has left."""
        self.root.mkdir(parents=True, exist_ok=True)
        old, final, partial = self._old(tag), self._final(tag), self._partial(tag)
        if old.is_dir() and not final.is_dir():
            old.rename(final)
        for left in (old, partial):
            if left.exists():
                shutil.rmtree(left)
        partial.mkdir()

    def commit(self, tag: str, *, latest: bool) -> None:
        """Make the checkpoint that was begun the one of its tag, in place of an earlier one."""
        old, final, partial = self._old(tag), self._final(tag), self._partial(tag)
        sync_folder(partial)
        if final.is_dir():
            final.rename(old)
        partial.rename(final)
        sync_folder(self.root)
        if latest:
            replace_text(self.root / LATEST, f"{tag}\n")
        if old.is_dir():
            shutil.rmtree(old)

    def abort(self, tag: str) -> None:
        """Remove the checkpoint that was begun. Earlier ones are untouched."""
        partial = self._partial(tag)
        if partial.is_dir():
            shutil.rmtree(partial)

    def tags(self) -> list[str]:
        """Tags of finished checkpoints, by name."""
        if not self.root.is_dir():
            return []
        found = {entry.name.removesuffix(OLD) for entry in os.scandir(self.root) if _finished(Path(entry.path))}
        return sorted(found)

    def latest(self) -> str | None:
        """The tag that ``latest`` names; ``None`` without such a file."""
        path = self.root / LATEST
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None

    def folder(self, tag: str) -> Path:
        """Where a finished checkpoint lies; its own folder even where that does not exist."""
        final, old = self._final(tag), self._old(tag)
        return old if old.is_dir() and not final.is_dir() else final

    def _final(self, tag: str) -> Path:
        return self.root / tag

    def _partial(self, tag: str) -> Path:
        return self.root / f"{tag}{PARTIAL}"

    def _old(self, tag: str) -> Path:
        return self.root / f"{tag}{OLD}"


def _finished(folder: Path) -> bool:
    return not folder.name.endswith(PARTIAL) and (folder / MANIFEST).is_file()
