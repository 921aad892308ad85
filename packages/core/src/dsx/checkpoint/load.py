"""Reading a checkpoint: always a reshard, into the tensors that the parts hold now."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dsx.checkpoint import plain
from dsx.checkpoint.boxes import Boxes
from dsx.checkpoint.compare import refuse_other_model
from dsx.checkpoint.contents import agree, describe, lift_parts
from dsx.checkpoint.manifest import CLIENT, CLIENT_PART, STATE, Manifest
from dsx.checkpoint.plain import Ref
from dsx.checkpoint.source import Source
from dsx.checkpoint.stores import DirectoryStore
from dsx.checkpoint.together import together
from dsx.checkpoint.torn import check_files, choose_tag, read_manifest
from dsx.checkpoint.tree import Lifted, join
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart

if TYPE_CHECKING:
    from dsx.comm.collectives import Collectives
    from dsx.plugin.roles import Store


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded."""

    tag: str
    client_state: dict[str, Any]
    meta: Mapping[str, Any]
    versions: Mapping[str, int]
    """Part -> version in which it was written."""
    ignored: tuple[str, ...]
    """Parts of the checkpoint that nobody asked for."""


def load(
    root: str | Path,
    *,
    tag: object | None = None,
    parts: Sequence[CheckpointPart],
    group: Collectives,
    strict: bool = True,
    only: Collection[str] | None = None,
    store: Store | None = None,
    verify: bool = True,
) -> Loaded:
    """Load a checkpoint into the parts. Called by every rank of the group, which may be of any size.

    Each part's ``state()`` is the template: its tensors and Boxes are filled in place, then ``load`` gets the same
    structure with the file's plain data (see ``tree.join``). tag: else what ``latest`` names. only: names of the parts
    to load; files of others are not touched. strict: refuse missing and unexpected tensors (differently shaped ones
    are always refused). verify: compare checksums first, each rank a share of the files.

    Before anything is changed, one CheckpointError on all ranks: a checkpoint that is absent, torn, of a later
    version, or of another model.
    """
    kept: Store = DirectoryStore(Path(root)) if store is None else store
    wanted = [part for part in parts if only is None or part.name in only]
    chosen = together(lambda: choose_tag(kept, tag), group=group, site="checkpoint.load.tag")[0]
    job = _Job(kept, group, wanted, strict)
    manifest = job.open(chosen, verify=verify)
    states, client = job.fill()
    for part in wanted:
        if part.name in states:
            part.load(states[part.name])
    ignored = tuple(name for name in manifest.parts if name not in {part.name for part in wanted})
    return Loaded(chosen, client, manifest.meta, manifest.parts, ignored)


class _Job:
    """One load on one rank."""

    manifest: Manifest
    source: Source

    def __init__(self, store: Store, group: Collectives, parts: Sequence[CheckpointPart], strict: bool) -> None:
        self.store, self.group, self.parts, self.strict = store, group, parts, strict
        self.lifted: dict[str, Lifted] = {}
        self.stored: dict[str, Any] = {}
        self.fresh: dict[str, Tensor] = {}

    def open(self, tag: str, *, verify: bool) -> Manifest:
        """Read the pages, compare the checkpoint with files and parts, and refuse what does not fit."""
        own: list[str] = []

        def read() -> None:
            self.manifest = read_manifest(self.store, tag)
            if self.manifest.tag != tag:  # a folder that was renamed by hand is still good
                self.manifest = replace(self.manifest, tag=tag)
            _refuse_later(self.manifest, self.parts)
            names = self._files()
            check_files(self.store, self.manifest, names, contents=False)
            if verify:
                share = names[self.group.rank :: self.group.size]
                check_files(self.store, self.manifest, share, contents=True)

        def turn_pages() -> None:
            self.stored = self._pages()
            self.source = Source(self.store, self.manifest)

        def ask() -> None:
            self.lifted = lift_parts(self.parts)
            own.append(describe(self.lifted, versions={part.name: part.version for part in self.parts}))

        together(read, group=self.group, site="checkpoint.load.open")
        # After every rank's share: a torn page is then known as such, whoever had to compare it.
        together(turn_pages, group=self.group, site="checkpoint.load.pages")
        # Only now: parts may talk to other ranks while they gather their state.
        together(ask, group=self.group, site="checkpoint.load.ask")
        template = agree(own[0], group=self.group, site="checkpoint.load.template")
        where = f"checkpoint {tag!r} in {self.store.describe()}"
        refuse_other_model(template, self.manifest, self.stored, strict=self.strict, where=where)
        for part in self.parts:
            if part.check is not None and part.name in self.stored:
                part.check(self.stored[part.name])
        return self.manifest

    def _files(self) -> list[str]:
        asked = {"", CLIENT_PART, *(part.name for part in self.parts)}
        return sorted(name for name, record in self.manifest.files.items() if record.part in asked)

    def _pages(self) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        for name in (STATE, CLIENT):
            where = f"{self.store.describe()}/{self.manifest.tag}/{name}"
            try:
                page = json.loads(self.store.read_text(self.manifest.tag, name))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{where} cannot be read: {error}") from error
            for part, tree in page.items():
                stored[part] = plain.loads(json.dumps(tree), where=where)
        return stored

    def fill(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fill the parts' tensors in place; give each part's state and the client's."""
        states: dict[str, Any] = {}
        for part, state in self.lifted.items():
            if part in self.stored:
                states[part] = join(state.tree, self.stored[part], fresh=self._fresh, own=self._own)
        client = join(None, self.stored.get(CLIENT_PART, {}), fresh=self._fresh, own=self._own)
        together(self._read, group=self.group, site="checkpoint.load.read")
        return states, client

    def _fresh(self, ref: Ref) -> Any:
        if ref.name not in self.fresh:
            self.fresh[ref.name] = self.source.empty(ref.name)
        tensor = self.fresh[ref.name]
        return tensor.numpy() if ref.array else tensor

    def _own(self, ref: Ref) -> Any:
        state = self.lifted[ref.name.partition("/")[0]]
        leaf = state.leaves[state.aliases.get(ref.name, ref.name)]
        return leaf.numpy() if ref.array and isinstance(leaf, Tensor) else leaf

    def _read(self) -> None:
        leaves: dict[str, Tensor | Boxes] = dict(self.fresh)
        for state in self.lifted.values():
            leaves |= state.leaves
        self.source.fill(leaves)


def _refuse_later(manifest: Manifest, parts: Sequence[CheckpointPart]) -> None:
    later = [
        f"part {part.name!r} has version {manifest.parts[part.name]}, at most {part.version} is understood"
        for part in parts
        if manifest.parts.get(part.name, 0) > part.version
    ]
    if later:
        raise CheckpointError(
            f"checkpoint {manifest.tag!r} was written by dsx {manifest.dsx}, later than this: {'; '.join(later)}."
            " Install that version"
        )
