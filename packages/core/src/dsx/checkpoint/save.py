"""Writing a checkpoint: every rank its own pieces, each element once, beside the old one and renamed when whole."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan

from dsx.checkpoint import plain
from dsx.checkpoint.boxes import Boxes
from dsx.checkpoint.contents import Contents, agree, carriers, describe, lift_parts
from dsx.checkpoint.manifest import CLIENT, CLIENT_PART, MANIFEST, STATE, FileRecord, Manifest
from dsx.checkpoint.stores import DirectoryStore, check_tag
from dsx.checkpoint.together import together
from dsx.checkpoint.tree import lift
from dsx.errors import CheckpointError
from dsx.plugin.types import CheckpointPart

if TYPE_CHECKING:
    from dsx.comm.collectives import Collectives
    from dsx.plugin.roles import Store


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint that is decided and not yet written: what, and which of it by this rank.

    It refers to the live tensors. Writing in the background needs a copy of ``leaves`` and nothing else.
    """

    tag: str
    contents: Contents
    leaves: Mapping[str, torch.Tensor | Boxes]
    client_keys: tuple[str, ...]
    meta: Mapping[str, Any]


def save(
    root: str | Path,
    *,
    tag: object,
    parts: Sequence[CheckpointPart],
    group: Collectives,
    client_state: Mapping[str, Any] | None = None,
    latest: bool = True,
    meta: Mapping[str, Any] | None = None,
    store: Store | None = None,
) -> Path:
    """Write one checkpoint and give its folder. Called by every rank of the group, with the same tag and parts.

    client_state, meta: plain data and tensors, kept apart from the parts; meta is shown in the manifest and holds no
    tensors. latest: whether ``latest`` names this checkpoint afterwards. store: another place than the folder
    ``root``. A tag that exists is replaced in one step. If a rank fails, all ranks raise the same CheckpointError and
    every earlier checkpoint is as it was.
    """
    kept: Store = DirectoryStore(Path(root)) if store is None else store
    snapshot = take(tag=tag, parts=parts, group=group, client_state=client_state or {}, meta=meta or {})
    write(snapshot, store=kept, group=group, latest=latest)
    return Path(root) / snapshot.tag


def take(
    *,
    tag: object,
    parts: Sequence[CheckpointPart],
    group: Collectives,
    client_state: Mapping[str, Any],
    meta: Mapping[str, Any],
) -> Snapshot:
    """Ask the parts for their states and settle with the other ranks what the checkpoint holds."""

    def check() -> tuple[str, tuple[str, ...]]:
        plain.dumps(dict(meta), where="meta")
        return check_tag(tag), tuple(map(str, client_state))

    # Before any part is asked: parts may talk to other ranks while they gather their state.
    answers = together(check, group=group, site="checkpoint.save.check")
    tags = list(dict.fromkeys(answer[0] for answer in answers))
    if len(tags) > 1:
        raise CheckpointError(f"ranks save under different tags: {', '.join(tags)}. Give the same on each rank")
    leaves: dict[str, torch.Tensor | Boxes] = {}
    own: list[str] = []  # this rank's contents: they stay here unless they differ from the others'

    def collect() -> None:
        lifted = lift_parts(parts) | {CLIENT_PART: lift(CLIENT_PART, dict(client_state))}
        for state in lifted.values():
            leaves.update(state.leaves)
        own.append(describe(lifted, versions={part.name: part.version for part in parts}))

    together(collect, group=group, site="checkpoint.save.collect")
    contents = agree(own[0], group=group, site="checkpoint.save.contents")
    keys = dict.fromkeys(key for answer in answers for key in answer[1])
    return Snapshot(tags[0], contents, leaves, tuple(keys), meta)


def write(snapshot: Snapshot, *, store: Store, group: Collectives, latest: bool) -> None:
    """Write a snapshot and make it the checkpoint of its tag."""
    first = group.rank == 0
    planner = DefaultSavePlanner(
        flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True
    )
    plan, metadata = _plan(snapshot, planner, group)
    try:
        together(lambda: store.begin(snapshot.tag) if first else None, group=group, site="checkpoint.save.begin")

        def write_own() -> tuple[list[Any], dict[str, FileRecord]]:
            writer = store.writer(snapshot.tag, rank=group.rank)
            writer.set_up_storage_writer(first)
            results = writer.write_data(writer.prepare_local_plan(plan), planner).wait()
            return results, dict(getattr(writer, "files", {}))

        written = together(write_own, group=group, site="checkpoint.save.write")

        def finish() -> None:
            if first:
                files = {name: record for _, part in written for name, record in part.items()}
                _finish(snapshot, store, metadata, [results for results, _ in written], files)
                store.commit(snapshot.tag, latest=latest)

        together(finish, group=group, site="checkpoint.save.commit")
    except Exception:
        if first:
            store.abort(snapshot.tag)
        raise


def _plan(snapshot: Snapshot, planner: DefaultSavePlanner, group: Collectives) -> tuple[SavePlan, Metadata]:
    """What this rank writes, and where every chunk of every tensor will be. The same metadata on each rank."""
    planner.set_up_planner(carriers(snapshot.leaves), is_coordinator=group.rank == 0)
    local = planner.create_local_plan()
    plans = group.exchange_objects(local, site="checkpoint.save.plan")
    try:
        plans, metadata = planner.create_global_plan(plans)
    except ValueError as error:
        raise CheckpointError(f"the ranks' pieces do not fit together: {error}") from error
    _check_cover(snapshot.contents, metadata)
    return planner.finish_plan(plans[group.rank]), metadata


def _check_cover(contents: Contents, metadata: Metadata) -> None:
    """Refuse a tensor of which some elements are held by no rank: it could not be read back."""
    lost = []
    for name, record in contents.tensors.items():
        stored = metadata.state_dict_metadata.get(name)
        chunks = stored.chunks if isinstance(stored, TensorStorageMetadata) else []
        held = sum(math.prod(chunk.sizes) for chunk in chunks)
        if held != math.prod(record.shape):
            lost.append(f"{name} {record.shape}: {held} of {math.prod(record.shape)} elements")
    if lost:
        raise CheckpointError("no rank, or more than one, holds some elements of " + "; ".join(lost))


def _finish(
    snapshot: Snapshot, store: Store, metadata: Metadata, results: list[list[Any]], files: dict[str, FileRecord]
) -> None:
    """Write the pages that make the rank's files a checkpoint, the manifest last."""
    contents, tag = snapshot.contents, snapshot.tag
    writer = store.writer(tag, rank=0)
    writer.set_up_storage_writer(True)
    writer.finish(metadata, results)
    files |= getattr(writer, "files", {})
    trees = dict(contents.trees)
    client = trees.pop(CLIENT_PART)
    files[STATE] = store.write_text(tag, STATE, _page(trees))
    files[CLIENT] = store.write_text(tag, CLIENT, _page({CLIENT_PART: client}))
    manifest = Manifest(
        tag=tag,
        dsx=version("dsx-core"),
        torch=torch.__version__,
        saved_at=time.time(),
        parts=contents.versions,
        tensors=contents.tensors,
        aliases=contents.aliases,
        client_keys=snapshot.client_keys,
        files=files,
        meta=snapshot.meta,
    )
    store.write_text(tag, MANIFEST, manifest.dumps())


def _page(trees: Mapping[str, Any]) -> str:
    page = {part: json.loads(plain.dumps(tree, where=part)) for part, tree in trees.items()}
    return json.dumps(page, indent=1) + "\n"
