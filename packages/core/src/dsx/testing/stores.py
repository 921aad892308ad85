"""Store conformance: honest records, checkpoints whole or absent, after a crash at any step of a save too."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsx.checkpoint.manifest import MANIFEST, FileRecord
from dsx.errors import DsxError
from dsx.testing.ranks import RanksFailed, reference_to, run_ranks
from dsx.testing.store_crashes import Crashes, crash
from dsx.testing.store_saves import NOTHING, files_below, read, whole, write
from dsx.testing.threads import Holder
from dsx.testing.verdict import fail, hold, trying

TEXT = "ünïcode, and a line\nmore\n"


def check_store(store: Callable[[Path], Any], *, folder: str | Path) -> None:
    """Check a store: a class, or function of the root path, at the top of a module. Raises AssertionError.

    folder: an empty place for its roots. The laws:

    - *records*: ``write_text`` and ``measure`` tell true sizes and CRC-32; what is absent is ``None`` or an OSError.
    - *begin, commit, abort*: what was begun is seen by nobody before its commit, and gone after an abort; ``tags``
      and ``latest`` follow; a tag that exists is replaced; another object, or another process, sees the same.
    - *reload*: what two ranks saved, dsx loads bit for bit.
    - *torn*: a file that was cut, changed or removed is noticed by ``load``, which changes nothing, or is harmless.
    - *crash*: after SIGKILL or an OSError at any change to the file system and before any call of the store, the last
      good checkpoint loads bit for bit, and the next save works.
    """
    place = Path(folder)
    name = getattr(store, "__name__", type(store).__name__)
    for law, check in (("records", _records), ("begin, commit, abort", _life), ("reload", _reload), ("torn", _torn)):
        root = place / law.split(",")[0]
        try:
            with trying("it"):
                check(store, root)
        except AssertionError as error:
            broken = f"store {name}, law {law!r}: {error}"
        else:
            continue
        fail(broken)
    _crash(store, place / "crash", name)


def _records(make: Callable[[Path], Any], root: Path) -> None:
    store = make(root)
    hold(store.tags() == [] and store.latest() is None, "an empty root has tags, or a latest one")
    hold(isinstance(store.describe(), str) and store.describe(), f"describe() gives {store.describe()!r}")
    store.begin("a")
    wanted = FileRecord(len(TEXT.encode()), zlib.crc32(TEXT.encode()))
    for page in ("page.json", MANIFEST):
        record = store.write_text("a", page, TEXT)
        hold(record == wanted, f"write_text gives {record}, wanted {wanted}")
    empty = store.write_text("a", "empty", "")
    hold(empty == FileRecord(0, 0), f"write_text of nothing gives {empty}")
    store.commit("a", latest=True)
    found = store.read_text("a", "page.json")
    hold(found == TEXT, f"read_text gives {found!r}, {TEXT!r} was written")
    hold(store.read_text("a", "empty") == "", "an empty page comes back with text")
    measured = store.measure("a", "page.json", contents=True)
    hold((measured.bytes, measured.crc32) == (wanted.bytes, wanted.crc32), f"measure gives {measured}, wanted {wanted}")
    brief = store.measure("a", "page.json", contents=False)
    hold(brief.bytes == wanted.bytes, f"measure without contents gives {brief}, wanted {wanted.bytes} bytes")
    for tag, page in (("a", "absent"), ("b", "page.json")):
        hold(store.measure(tag, page, contents=True) is None, f"measure of absent {tag}/{page} is not None")
        try:
            store.read_text(tag, page)
        except OSError:
            continue
        fail(f"read_text of absent {tag}/{page} raises no OSError")


def _life(make: Callable[[Path], Any], root: Path) -> None:
    store = make(root)
    write(store, tag="two", value=2.0)
    write(store, tag="one", value=1.0, latest=False)
    _seen(store, ["one", "two"], "two", "after two saves, the second of which is not to be the latest")
    _seen(make(root), ["one", "two"], "two", "another object over the same root, after two saves,")
    store.begin("three")
    store.write_text("three", MANIFEST, TEXT)
    _seen(make(root), ["one", "two"], "two", "while a third is begun")
    store.abort("three")
    _seen(store, ["one", "two"], "two", "after an abort")
    store.abort("three")  # of nothing: what was never begun may be aborted, by a save that fails early
    store.begin("one")
    with trying("a tag that is begun again cannot be read any more: reading it"):
        hold(read(make(root), tag="one") == 1.0, "a tag that is begun again has other content")
    store.abort("one")
    with trying("an abort took the earlier checkpoint of its tag: reading it"):
        hold(read(store, tag="one") == 1.0, "after an abort the earlier checkpoint of its tag has other content")
    store.begin("two")  # begun and never ended, as by a process that died
    write(make(root), tag="two", value=5.0)
    hold(read(store) == 5.0, "a tag that exists, and was left begun, is not replaced by the next save")
    write(store, tag="one", value=4.0)
    _seen(store, ["one", "two"], "one", "after a tag was replaced")
    hold(read(store) == 4.0 and read(store, tag="two") == 5.0, "a replaced tag, or its neighbour, has other content")


def _seen(store: Any, tags: list[str], latest: str, when: str) -> None:
    found = store.tags()
    hold(found == tags, f"{when} tags() gives {found}, wanted {tags}")
    hold(store.latest() == latest, f"{when} latest() gives {store.latest()!r}, wanted {latest!r}")


def _reload(make: Callable[[Path], Any], root: Path) -> None:
    write(make(root), tag="a", value=1.0, ranks=2)
    write(make(root), tag="b", value=2.0, ranks=3)
    for tag, value in (("a", 1.0), ("b", 2.0), (None, 2.0)):
        found = read(make(root), tag=tag)
        hold(found == value, f"tag {tag!r} gives {found}, {value} was saved")


def _torn(make: Callable[[Path], Any], root: Path) -> None:
    """Damage each file in the root in turn. A store that keeps its files elsewhere has none to damage."""
    write(make(root), tag="a", value=1.0)
    for name, path in files_below(root).items():
        good = path.read_bytes()
        middle = len(good) // 2
        damages = {
            "cut": good[:-1],
            "emptied": b"",
            "changed": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :] if good else b"x",
            "removed": None,
        }
        for damage, content in damages.items():
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            _notices(make(root), f"file {name} was {damage}")
            path.write_bytes(good)
    hold(read(make(root)) == 1.0, "after all was mended the checkpoint does not load")


def _notices(store: Any, what: str) -> None:
    holder = Holder(whole(NOTHING), rank=0, size=1)
    try:
        value = read(store, kept=holder)
    except DsxError:
        hold(holder.equals(whole(NOTHING)), f"{what}: load refused it, but has changed tensors")
    except AssertionError as error:
        fail(f"{what}, and load did not notice: {error}")
    except Exception as error:  # noqa: BLE001  (whatever a damaged file makes of it)
        fail(f"{what}: load raised {type(error).__name__} instead of a DsxError: {error}")
    else:
        hold(value == 1.0, f"{what}, and load did not notice: it gives {value}")


def _crash(make: Callable[[Path], Any], root: Path, name: str) -> None:
    try:
        reference = reference_to(make)
    except TypeError:
        fail(f"store {name}, law 'crash': it is tried in another process, so define it at the top of a module")
    try:
        (problem,) = run_ranks(crash, Crashes(reference, str(root)), world=1, init=False, deadline=120.0)
    except RanksFailed as error:
        fail(f"store {name}, law 'crash': {error}")
    hold(not problem, f"store {name}, law 'crash': {problem}")
