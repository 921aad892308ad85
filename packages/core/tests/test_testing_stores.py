"""check_store passes the core's store, and finds each way of breaking a law."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dsx.checkpoint.datafile import checksum
from dsx.checkpoint.files import replace_text
from dsx.checkpoint.manifest import MANIFEST, FileRecord
from dsx.checkpoint.storage import FolderWriter
from dsx.checkpoint.stores import LATEST, DirectoryStore
from dsx.testing import check_store


def test_the_cores_store_passes_and_leaves_nothing_of_a_struck_save(tmp_path: Path) -> None:
    check_store(DirectoryStore, folder=tmp_path)
    roots = list((tmp_path / "crash").iterdir())
    assert len(roots) > 60  # steps at which a save was killed or failed, under two tags
    left = [path for root in roots for path in root.iterdir()]
    assert {path.name for path in left} == {"first", "second", "latest"}


class WrongSize(DirectoryStore):
    def write_text(self, tag: str, name: str, text: str) -> FileRecord:
        record = super().write_text(tag, name, text)
        return FileRecord(len(text), record.crc32)


class NoChecksum(DirectoryStore):
    def measure(self, tag: str, name: str, *, contents: bool) -> FileRecord | None:
        return super().measure(tag, name, contents=False)


class AbsentIsEmpty(DirectoryStore):
    def measure(self, tag: str, name: str, *, contents: bool) -> FileRecord | None:
        return super().measure(tag, name, contents=contents) or FileRecord(0, 0)


class AbsentIsKeyError(DirectoryStore):
    def read_text(self, tag: str, name: str) -> str:
        if not (self.folder(tag) / name).is_file():
            raise KeyError(name)
        return super().read_text(tag, name)


class ShowsUnfinished(DirectoryStore):
    def begin(self, tag: str) -> None:
        super().begin(tag)
        (self.root / "three").mkdir(exist_ok=True)
        (self.root / "three" / MANIFEST).touch()


class ForgetsLatest(DirectoryStore):
    def commit(self, tag: str, *, latest: bool) -> None:
        super().commit(tag, latest=True)


class AbortTakesAll(DirectoryStore):
    def abort(self, tag: str) -> None:
        super().abort(tag)
        shutil.rmtree(self.root / tag, ignore_errors=True)


class TakesAwayAtBegin(DirectoryStore):
    def begin(self, tag: str) -> None:
        super().begin(tag)
        if tag == "one" and (self.root / tag).exists():
            shutil.rmtree(self.root / tag)


class Remembers(DirectoryStore):
    """Knows its tags only in the object that wrote them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.known: set[str] = set()

    def commit(self, tag: str, *, latest: bool) -> None:
        super().commit(tag, latest=latest)
        self.known.add(tag)

    def tags(self) -> list[str]:
        return sorted(self.known)


class RefusesSecondBegin(DirectoryStore):
    def begin(self, tag: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._partial(tag).mkdir()


class OneFileForAllRanks(DirectoryStore):
    def writer(self, tag: str, *, rank: int = 0) -> FolderWriter:
        return super().writer(tag, rank=0)


class Unverified(DirectoryStore):
    """Tells what it was told to expect, not what is there."""

    def write_text(self, tag: str, name: str, text: str) -> FileRecord:
        super().write_text(tag, name, text)
        return FileRecord(0, 0)

    def measure(self, tag: str, name: str, *, contents: bool) -> FileRecord | None:
        return FileRecord(0, 0)


class CachedChecksums(DirectoryStore):
    """Notes sizes and checksums at commit, and gives those for ever."""

    def commit(self, tag: str, *, latest: bool) -> None:
        partial = self._partial(tag)
        for path in sorted(partial.iterdir()):
            (partial / f"{path.name}.sum").write_text(f"{path.stat().st_size} {checksum(path)}")
        super().commit(tag, latest=latest)

    def measure(self, tag: str, name: str, *, contents: bool) -> FileRecord | None:
        note = self.folder(tag) / f"{name}.sum"
        return FileRecord(*map(int, note.read_text().split())) if note.is_file() else None


class InPlace(DirectoryStore):
    """Empties the place of a checkpoint before the new one is there."""

    def commit(self, tag: str, *, latest: bool) -> None:
        if self._final(tag).is_dir():
            shutil.rmtree(self._final(tag))
        super().commit(tag, latest=latest)


class LatestFirst(DirectoryStore):
    def commit(self, tag: str, *, latest: bool) -> None:
        if latest:
            replace_text(self.root / LATEST, f"{tag}\n")
        super().commit(tag, latest=latest)


class RaisesFromAbort(DirectoryStore):
    def abort(self, tag: str) -> None:
        shutil.rmtree(self._partial(tag))


class Swallows(DirectoryStore):
    """Goes on as if nothing had happened when the disk is full."""

    def commit(self, tag: str, *, latest: bool) -> None:
        try:
            super().commit(tag, latest=latest)
        except OSError:
            return


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (WrongSize, "law 'records': write_text gives FileRecord"),
        (NoChecksum, "law 'records': measure gives FileRecord"),
        (AbsentIsEmpty, "law 'records': measure of absent a/absent is not None"),
        (AbsentIsKeyError, "law 'records': it raised KeyError"),
        (ShowsUnfinished, "law 'begin, commit, abort'"),
        (ForgetsLatest, r"law 'begin, commit, abort': after two saves.* latest\(\) gives 'one', wanted 'two'"),
        (AbortTakesAll, "law 'begin, commit, abort': an abort took the earlier checkpoint of its tag"),
        (TakesAwayAtBegin, "law 'begin, commit, abort': a tag that is begun again cannot be read any more"),
        (Remembers, "law 'begin, commit, abort': another object over the same root"),
        (RefusesSecondBegin, "law 'begin, commit, abort': it raised CheckpointError: FileExistsError"),
        (OneFileForAllRanks, "law 'reload'"),
        (Unverified, "law 'records'"),
        (CachedChecksums, "law 'torn': file a/index.json was changed, and load did not notice"),
        (InPlace, "law 'crash': after SIGKILL at step .* the last good checkpoint does not load"),
        (LatestFirst, "law 'crash': after SIGKILL at step .* of a save under 'second' the last good"),
        (RaisesFromAbort, "law 'begin, commit, abort': it raised FileNotFoundError"),
        (Swallows, "law 'crash': after OSError at step .* though the save ended well"),
    ],
)
def test_each_broken_law_is_found(wrong: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_store(wrong, folder=tmp_path)


def test_a_store_that_no_other_process_finds_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="define it at the top of a module"):
        check_store(lambda root: DirectoryStore(root), folder=tmp_path)
