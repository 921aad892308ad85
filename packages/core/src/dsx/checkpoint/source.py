"""The tensors of one checkpoint, read into whatever holds them now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from dsx.checkpoint.boxes import Boxes
from dsx.checkpoint.contents import carriers, dtype_of
from dsx.checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from dsx.plugin.roles import Store


class Source:
    """Reads tensors by name, in any cut; a second name leads to the same elements."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.manifest = manifest
        self.reader = store.reader(manifest.tag)
        self.metadata = _with_aliases(self.reader.read_metadata(), manifest)

    def empty(self, name: str, *, device: str = "cpu") -> Tensor:
        """A new tensor of the stored shape and dtype, not filled."""
        record = self.manifest.tensors[self.manifest.resolve(name)]
        return torch.empty(record.shape, dtype=dtype_of(record), device=device)

    def fill(self, leaves: Mapping[str, Tensor | Boxes]) -> None:
        """Fill tensors, DTensors and Boxes in place; names that the checkpoint lacks are left alone."""
        known = {name: leaf for name, leaf in leaves.items() if name in self.metadata.state_dict_metadata}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(carriers(known), self.metadata, False)
        self.reader.set_up_storage_reader(self.metadata, False)
        plan = self.reader.prepare_local_plan(planner.create_local_plan())
        self.reader.read_data(planner.finish_plan(plan), planner).wait()


def _with_aliases(metadata: Metadata, manifest: Manifest) -> Metadata:
    """The metadata with each second name leading to the same chunks."""
    stored, places = dict(metadata.state_dict_metadata), dict(metadata.storage_data)
    for name, target in manifest.aliases.items():
        original = stored[target]
        stored[name] = original
        if isinstance(original, TensorStorageMetadata):
            for chunk in original.chunks:
                places[MetadataIndex(name, chunk.offsets)] = places[MetadataIndex(target, chunk.offsets)]
    return replace(metadata, state_dict_metadata=stored, storage_data=places)
