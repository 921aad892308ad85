"""Boxes in the form that torch.distributed.checkpoint writes and reshards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from dsx.checkpoint.boxes import Boxes, Chunk, chunks_of


class Carrier(Tensor):
    """A tensor of the global shape without elements, which hands torch.distributed.checkpoint its chunks.

    It must be a tensor, since the planner takes any other object for bytes. It refuses every operation.
    """

    _chunks: dict[tuple[int, ...], Chunk]

    @staticmethod
    def __new__(cls, boxes: Boxes) -> Carrier:
        device = boxes.pieces[0][1].device if boxes.pieces else torch.device("cpu")
        make: Any = Tensor._make_wrapper_subclass
        self: Carrier = make(cls, boxes.shape, dtype=boxes.dtype, device=device)
        self._chunks = {chunk[0]: chunk for chunk in chunks_of(boxes)}
        return self

    # The planner reads sizes and attributes only; without this each of them would become a refused operation.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> NoReturn:
        raise TypeError(f"{func} on a checkpoint carrier, which holds no elements of its own")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Carrier({tuple(self.shape)}, {self.dtype}, {len(self._chunks)} chunks)"

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        size = self.size()
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=_metadata(offsets, sizes), properties=properties, size=size),
            )
            for offsets, sizes, _ in self._chunks.values()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_metadata(offsets, sizes) for offsets, sizes, _ in self._chunks.values()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        if index.offset is None:
            raise ValueError(f"{index.fqn}: a chunk is asked for without its offset")
        return self._chunks[tuple(index.offset)][2]


def _metadata(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
