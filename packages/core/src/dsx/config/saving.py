"""The section that says how checkpoints are written and checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dsx.config.section import Section


def _title(value: Any) -> Any:
    return value.capitalize() if isinstance(value, str) else value


class ParallelWriteSection(Section):
    """``checkpoint.parallel_write``."""

    pipeline_stage: bool = False
    """Accepted without effect: every rank always writes its own part at the same time as the others."""


class WriterSection(Section):
    """``checkpoint.writer``: knobs of DeepSpeed's fast writer. Accepted without effect."""

    type: str = "FAST"
    """Accepted without effect: the store decides how bytes reach the file."""
    decoupled: bool = False
    """Accepted without effect."""
    io_buffer_size: int = Field(default=64 * 2**20, gt=0)
    """Accepted without effect."""
    io_buffer_double: bool = True
    """Accepted without effect."""
    show_statistics: bool = False
    """Accepted without effect."""
    data_parallel: str | None = None
    """Accepted without effect: replicated state is always written once, spread over the ranks."""
    io_multiplier: int = Field(default=1, gt=0)
    """Accepted without effect."""


class CheckpointSection(Section):
    """``checkpoint``: how checkpoints are written and checked."""

    store: str = Field(default="directory", min_length=1)
    """Name of the registered store that keeps the files. Own to dsx."""
    tag_validation: Annotated[Literal["Warn", "Ignore", "Fail"], BeforeValidator(_title)] = "Warn"
    """Accepted without effect: ranks that save under different tags always fail, all with one error that names them."""
    load_universal: bool = False
    """Accepted without effect: every checkpoint loads under any number of ranks, any stage and any mesh."""
    use_node_local_storage: bool = False
    """Each node keeps its own files. Only on one node: other layouts can load it only where it is seen whole."""
    parallel_write: ParallelWriteSection = ParallelWriteSection()
    """Accepted without effect."""
    checkpoint_serialization: bool = True
    """Accepted without effect: tensors are always written by torch.distributed.checkpoint."""
    writer: WriterSection | None = None
    """Accepted without effect."""
