"""Finding torn checkpoints, and the last good one to fall back on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dsx.checkpoint.manifest import MANIFEST, FileRecord, Manifest
from dsx.errors import CheckpointError

if TYPE_CHECKING:
    from dsx.plugin.roles import Store


def read_manifest(store: Store, tag: str) -> Manifest:
    """The manifest of a tag; where it is absent or torn, a CheckpointError that names the last good tag."""
    where = f"{store.describe()}/{tag}/{MANIFEST}"
    try:
        return Manifest.loads(store.read_text(tag, MANIFEST), where=where)
    except OSError as error:
        known = store.tags()
        have = f"tags there: {', '.join(known)}" if known else "no checkpoint is there"
        raise CheckpointError(
            f"no checkpoint {tag!r} in {store.describe()}: {where} cannot be read ({error.strerror}); {have}"
            f"{_advice(store, tag)}"
        ) from error
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_advice(store, tag)}") from error


def choose_tag(store: Store, tag: object | None) -> str:
    """The tag to load: the one asked for, else what ``latest`` names."""
    if tag is not None:
        return str(tag)
    latest = store.latest()
    if latest is None:
        known = store.tags()
        what = f"it holds {', '.join(known)}: give one as tag" if known else "it holds no checkpoint at all"
        raise CheckpointError(f"{store.describe()} has no file 'latest', and no tag is given; {what}")
    return latest


def check_files(store: Store, manifest: Manifest, files: Iterable[str], *, contents: bool) -> None:
    """Compare stored files with the manifest; a CheckpointError that names each torn one and the last good tag."""
    faults = _faults(store, manifest, files, contents=contents)
    if faults:
        tag = manifest.tag
        raise CheckpointError(
            f"checkpoint {tag!r} in {store.describe()} is torn: {'; '.join(faults)}{_advice(store, tag)}"
        )


def _faults(store: Store, manifest: Manifest, files: Iterable[str], *, contents: bool) -> list[str]:
    records: Mapping[str, FileRecord] = manifest.files
    faults = []
    for name in files:
        wanted, found = records[name], store.measure(manifest.tag, name, contents=contents)
        if found is None:
            faults.append(f"file {name} is missing")
        elif found.bytes != wanted.bytes:
            faults.append(f"file {name} has {found.bytes} bytes, {wanted.bytes} were written")
        elif contents and found.crc32 != wanted.crc32:
            faults.append(f"file {name} has checksum {found.crc32:08x}, {wanted.crc32:08x} was written")
    return faults


def last_good(store: Store, *, besides: str) -> str | None:
    """The newest other tag whose files are all there in full size."""
    good: list[tuple[float, str]] = []
    for tag in store.tags():
        if tag == besides:
            continue
        try:
            manifest = Manifest.loads(store.read_text(tag, MANIFEST), where=tag)
        except (CheckpointError, OSError):
            continue
        if not _faults(store, manifest, manifest.files, contents=False):
            good.append((manifest.saved_at, tag))
    return max(good)[1] if good else None


def _advice(store: Store, tag: str) -> str:
    good = last_good(store, besides=tag)
    return f". The last good one is {good!r}: load it with tag={good!r}" if good else ". There is no other good one"
