"""What the objects that plugins build must be able to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dsx.plugin.types import CheckpointPart, Layer, Score

if TYPE_CHECKING:
    from dsx.checkpoint.manifest import FileRecord
    from dsx.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Norm:
    """A gradient norm over the whole model, each element counted once, unscaled."""

    value: float
    finite: bool
    bad: str | None = None
    """Name of the first parameter with an inf or nan gradient."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that this rank holds at rest, by kind."""

    parameters: int
    gradients: int
    optimizer: int
    """Moments, and master weights where they are not the parameters themselves."""
    buffers: int
    kept: int = 0
    """Memory beside the state, kept for gradients on their way and for collectives: counted, never predicted."""

    @property
    def total(self) -> int:
        """The state: all but what is kept beside it."""
        return self.parameters + self.gradients + self.optimizer + self.buffers


@runtime_checkable
class Driver(Protocol):
    """Gradients and update: accumulate, reduce, own shard, update, publish."""

    loss_scale: float
    """By what the losses of the coming backwards are multiplied; divided out of gradients again."""

    @property
    def optimizer(self) -> Any:
        """The optimizer that users see, over this rank's pieces; ``None`` where nothing is updated."""

    def begin(self, *, micro_batches: int) -> None:
        """An update begins that divides its gradients by this many micro-batches."""

    def forward(self) -> AbstractContextManager[None]:
        """Around each forward."""

    def expect(self, *, last: bool, hold: bool = False) -> None:
        """A backward comes; ``last`` if it is this rank's last of the update, so reduction may overlap it.

        With ``hold`` nothing is reduced before ``reduce``.
        """

    def reduce(self) -> None:
        """Complete every reduction that the overlap has not. Idempotent; sufficient alone."""

    def norm(self, *, order: float = 2.0) -> Norm:
        """The norm of the reduced gradients over the whole world, each owner counted once."""

    def update(self, *, factor: float = 1.0) -> None:
        """Unscale, multiply by ``factor``, update and publish the weights; then gradients are cleared."""

    def scale_gradients(self, factor: float) -> None:
        """Multiply the reduced gradients."""

    def discard(self) -> None:
        """Clear the gradients without an update."""

    def gradient(self, name: str) -> Tensor | None:
        """The whole reduced gradient of one parameter, unscaled, fp32; ``None`` where there is none."""

    def set_gradient(self, name: str, value: Tensor) -> None:
        """Replace the reduced gradient of one parameter; the same value on each rank."""

    def local_gradient(self, name: str) -> Tensor | None:
        """A view of the part of the gradient that this rank owns, as it is kept (scaled, flat)."""

    def gathered(
        self, names: Sequence[str] | None = None, *, writer: int | None = None
    ) -> AbstractContextManager[None]:
        """Parameters whole within the context; with a writer rank, its edits reach all ranks afterwards."""

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole fp32 weights and buffers by name, on the host, on each rank."""

    def parts(self, *, loading: bool = False) -> list[CheckpointPart]:
        """Model and optimizer as named boxes, to be written, or to be filled."""

    def state_bytes(self) -> tuple[StateBytes, StateBytes]:
        """(predicted, counted) for this rank."""

    def close(self, *, whole: bool = True) -> None:
        """Release hooks and buffers. The module keeps whole weights; without ``whole`` none are gathered."""


class Loop(Protocol):
    """How one update is made of micro-batches."""

    def train_batch(self, data: Iterator[Any]) -> Tensor: ...

    def eval_batch(self, data: Iterator[Any]) -> Tensor: ...


class Observer(Protocol):
    """Told of the engine's steps; bound once. Base class with empty methods: ``dsx.engine.observers.Observer``."""

    def before_forward(self, engine: Engine) -> None: ...
    def after_forward(self, engine: Engine) -> None: ...
    def before_backward(self, engine: Engine) -> None: ...
    def after_backward(self, engine: Engine) -> None: ...
    def before_step(self, engine: Engine) -> None: ...
    def after_step(self, engine: Engine, *, updated: bool) -> None: ...
    def before_save(self, engine: Engine, path: Path) -> None: ...
    def after_save(self, engine: Engine, path: Path) -> None: ...
    def close(self, engine: Engine) -> None: ...


class Accelerator(Protocol):
    """One kind of device."""

    name: str
    device_type: str
    backend: str
    """The torch.distributed backend that serves it."""

    @staticmethod
    def score() -> Score: ...
    def device(self, local_rank: int) -> torch.device: ...
    def device_count(self) -> int: ...
    def set_device(self, local_rank: int) -> None: ...
    def synchronize(self) -> None: ...
    def native_bf16(self) -> bool: ...
    def memory_allocated(self) -> int: ...
    def memory_total(self) -> int: ...
    def describe(self) -> str: ...


class Store(Protocol):
    """Where checkpoint files are kept: one flat set of named files a tag. ``dsx.checkpoint.stores`` has the pattern.

    ``writer`` and ``reader`` give torch.distributed.checkpoint's ``StorageWriter`` and ``StorageReader``. A writer may
    have ``files``, a mapping of the names it has finished to their FileRecord, which load compares.
    """

    def __init__(self, root: Path) -> None: ...
    def describe(self) -> str: ...
    def writer(self, tag: str, *, rank: int = 0) -> Any: ...
    def reader(self, tag: str) -> Any: ...
    def write_text(self, tag: str, name: str, text: str) -> FileRecord: ...
    def read_text(self, tag: str, name: str) -> str: ...
    def measure(self, tag: str, name: str, *, contents: bool) -> FileRecord | None: ...
    def begin(self, tag: str) -> None: ...
    def commit(self, tag: str, *, latest: bool) -> None: ...
    def abort(self, tag: str) -> None: ...
    def tags(self) -> list[str]: ...
    def latest(self) -> str | None: ...


class Monitor(Protocol):
    """Where metrics are written; only rank 0 makes one."""

    def write(self, values: Mapping[str, float], *, step: int) -> None: ...
    def close(self) -> None: ...


class Runner(Protocol):
    """Starts ranks on several machines. Pure: it builds commands, and starts nothing."""

    def available(self) -> Score:
        """0 where its program is absent, with the reason."""

    def commands(
        self, *, nodes: Mapping[str, tuple[int, ...]], program: Sequence[str], environment: Mapping[str, str]
    ) -> list[list[str]]:
        """The commands to start here, all at once. ``nodes``: slots by machine; ``program``: script and arguments."""


class Codec(Protocol):
    """Numbers in fewer bytes, for the wire. Made once without arguments; pure, and alike on every rank.

    Flat, contiguous tensors; ``values`` is fp32, bf16 or fp16, ``packed`` is uint8. A codec may lose precision, but
    decodes zeros to zeros and, of what it has encoded itself, always the same.
    """

    name: str

    def packed_bytes(self, numel: int) -> int:
        """Bytes that so many numbers take, known beforehand on every rank; 0 for none."""

    def encode(self, values: Tensor, packed: Tensor) -> None:
        """Fill ``packed``, which has ``packed_bytes(values.numel())`` bytes. ``values`` is only read."""

    def decode(self, packed: Tensor, values: Tensor) -> None:
        """Fill ``values`` from what ``encode`` made, in its dtype."""


class Partitioner(Protocol):
    """Cuts a list of layers into contiguous parts."""

    def __call__(self, layers: Sequence[Layer], *, parts: int) -> Sequence[int]:
        """``parts + 1`` borders, from 0 to ``len(layers)``, never falling: part i is ``layers[b[i]:b[i + 1]]``."""
