"""What an engine is made of, and what people ask it. Its acts are in :mod:`dsx.engine.engine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from dsx.activation.current import settings_given
from dsx.comm.collectives import Collectives
from dsx.comm.journal import Account
from dsx.config.auto import AutoType
from dsx.engine.losses import RunningLoss
from dsx.engine.stash import Stash
from dsx.errors import EngineError
from dsx.mesh.mesh import Mesh
from dsx.optim.schedule_driver import LRSchedule
from dsx.plugin.manager import PluginManager, Tagged
from dsx.plugin.naming import Who, add_note
from dsx.plugin.roles import Accelerator, Driver, Loop, Norm, Observer
from dsx.precision.scaling import LossScaler

if TYPE_CHECKING:
    from dsx.planning.plan import Plan


def inputs_dtype(plan: Plan) -> torch.dtype | None:
    """To what floating-point inputs of the model are cast; ``None`` leaves them as they are."""
    parameter = plan.precision.parameter
    refused = plan.config.has("fp16.auto_cast") and not plan.config.fp16.auto_cast
    return None if parameter == torch.float32 or (parameter == torch.float16 and refused) else parameter


class EngineBase:
    """Parts, counters and questions of an engine."""

    def __init__(
        self,
        plan: Plan,
        module: nn.Module,
        *,
        driver: Driver,
        scaler: LossScaler,
        schedule: LRSchedule | None,
        mesh: Mesh,
        device: torch.device,
        accelerator: Accelerator,
        plugins: PluginManager,
    ) -> None:
        self.plan = plan
        self.config = plan.config
        self.module = module
        self.driver = driver
        self.scaler = scaler
        self.schedule = schedule
        self.mesh = mesh
        self.device = device
        self.accelerator = accelerator
        self.plugins = plugins
        self.stash = Stash()
        self.loop: Loop
        self.training_dataloader: Any = None
        self.observers: tuple[Observer, ...] = ()
        self._observed_for: dict[int, Who] = {}
        """The plugin behind each observer, by the observer's identity."""
        self.cleanups = ExitStack()
        """What is undone when the engine closes, last first."""
        self.micro_steps = 0
        self.global_steps = 0
        self.global_samples = 0
        self.skipped_steps = 0
        self._inputs = inputs_dtype(plan)
        self._boundary: bool | None = None
        self._synced = True
        self._scaled_by_loss = False
        clip = plan.config.gradient_clipping
        self._clip_at = 0.0 if isinstance(clip, AutoType) else clip  # planning leaves no auto
        self._norm: Norm | None = None
        self._updated = False
        self._closed = False
        self._batches: Iterator[Any] | None = None
        """The endless iterator over the engine's own loader."""
        self._accumulation = plan.batch.accumulation
        self._losses = RunningLoss(self._accumulation)
        self._recompute = settings_given(plan.config)
        driver.begin(micro_batches=self._accumulation)

    # What people ask -----------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Any:
        """The optimizer over this rank's shards, or ``None``."""
        return self.driver.optimizer

    @property
    def lr_scheduler(self) -> Any:
        """The learning-rate schedule, or ``None``."""
        return self.schedule

    @property
    def data_group(self) -> Collectives:
        """The ranks that hold the same model and see different data."""
        return self.mesh.group("data")

    @property
    def loss_scale(self) -> float:
        """The factor on the loss; 1 without fp16."""
        return self.scaler.scale

    @property
    def last_loss(self) -> Tensor | None:
        """The loss of the last update on this rank, the mean over its micro-batches, fp32; reading it may wait.

        ``None`` before the first update, and where losses do not pass through :meth:`backward`.
        """
        return self._losses.last

    def comm_account(self) -> Account:
        """Calls, bytes sent by this rank and seconds waited, by operation, over all groups of the mesh."""
        return self.mesh.account()

    @property
    def was_step_applied(self) -> bool:
        """Whether the last step() changed the weights."""
        return self._updated

    def get_lr(self) -> list[float]:
        """The rate that the next update will use, one a parameter group."""
        if self.schedule is not None:
            return self.schedule.get_last_lr()
        return [] if self.optimizer is None else [float(group["lr"]) for group in self.optimizer.param_groups]

    def train_batch_size(self) -> int:
        """Samples in one update over all ranks."""
        return self.plan.batch.train

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples in one forward of one rank."""
        return self.plan.batch.micro

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of one rank in one update."""
        return self._accumulation

    def zero_optimization_stage(self) -> int:
        """The ZeRO stage that the driver runs."""
        return int(getattr(self.driver, "stage", 0))

    def train(self, mode: bool = True) -> Self:
        """Training mode of the module."""
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """Evaluation mode of the module."""
        return self.train(False)

    def compile(self, **options: Any) -> Self:
        """Compile the module in place with ``torch.compile``'s options."""
        self.module.compile(**options)
        return self

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's parameters."""
        return self.module.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The module's parameters by name."""
        return self.module.named_parameters()

    def watch(self, observers: Sequence[Tagged[Observer]]) -> None:
        """Take these observers, in place of those before; each is remembered with its plugin."""
        self.observers = tuple(item.value for item in observers)
        self._observed_for = {id(item.value): self.plugins.who(item.plugin) for item in observers}

    def blame(self, observer: Observer, error: Exception) -> None:
        """Write on what an observer raised whose observer it is. Only called once something is raised."""
        who = self._observed_for.get(id(observer))
        if who is not None:
            add_note(error, who, f"observer {type(observer).__name__}")

    def _open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed: make a new one with dsx.initialize")
