"""The engine: a model, its driver and its counters, with the names that people know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from dsx.activation.current import recomputing, settings_given
from dsx.comm.collectives import Collectives
from dsx.comm.journal import Account
from dsx.config.auto import AutoType
from dsx.engine import saving
from dsx.engine.clipping import Clipped, clip_factor
from dsx.engine.losses import RunningLoss
from dsx.engine.scaling import cast_inputs, scale_gradients
from dsx.engine.stash import Stash
from dsx.errors import EngineError
from dsx.mesh.mesh import Mesh
from dsx.optim.schedule_driver import LRSchedule
from dsx.plugin.manager import PluginManager
from dsx.plugin.roles import Accelerator, Driver, Loop, Norm, Observer, StateBytes
from dsx.precision.overflow import overflow_report
from dsx.precision.scaling import LossScaler

if TYPE_CHECKING:
    from dsx.planning.plan import Plan


class Engine:
    """Trains one model. Made by ``dsx.initialize``; closes itself as a context manager."""

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
        self.cleanups = ExitStack()
        """What is undone when the engine closes, last first."""
        self.micro_steps = 0
        self.global_steps = 0
        self.global_samples = 0
        self.skipped_steps = 0
        self._boundary: bool | None = None
        self._synced = True
        self._scaled_by_loss = False
        clip = plan.config.gradient_clipping
        self._clip_at = 0.0 if isinstance(clip, AutoType) else clip  # planning leaves no auto
        self._clip: float | None = None
        self._norm: Norm | None = None
        self._updated = False
        self._closed = False
        self._accumulation = plan.batch.accumulation
        self._losses = RunningLoss(self._accumulation)
        self._recompute = settings_given(plan.config)
        driver.begin(micro_batches=self._accumulation)

    # Forward, backward, step ---------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, in the plan's precision."""
        self._open()
        for observer in self.observers:
            observer.before_forward(self)
        precision = self.plan.precision
        args, kwargs = cast_inputs((args, kwargs), precision.parameter, self.device) if self._casts else (args, kwargs)
        with self.driver.forward(), self._autocast(), recomputing(self._recompute):
            outputs = self.module(*args, **kwargs)
        if self.scaler.active and torch.is_grad_enabled():
            outputs = scale_gradients(outputs, self._plain_scale)
        for observer in self.observers:
            observer.after_forward(self)
        return outputs

    forward = __call__

    @property
    def _casts(self) -> bool:
        return self.plan.precision.parameter != torch.float32 or self.device.type != "cpu"

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.plan.precision.autocast
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def _plain_scale(self) -> float:
        return 1.0 if self._scaled_by_loss else self.scaler.scale

    def backward(self, loss: Tensor, gradient: Tensor | None = None, *, retain_graph: bool = False) -> Tensor:
        """Gradients of one micro-batch's loss. Several before a step add up. Gives the loss back."""
        self._open()
        for observer in self.observers:
            observer.before_backward(self)
        self.driver.expect(last=self.is_gradient_accumulation_boundary() and self._synced, hold=not self._synced)
        scaled = loss * self.scaler.scale if self.scaler.active else loss
        self._scaled_by_loss = True
        try:
            scaled.backward(gradient, retain_graph=retain_graph)
        finally:
            self._scaled_by_loss = False
            self.driver.expect(last=False, hold=not self._synced)
        self._losses.add(loss)
        for observer in self.observers:
            observer.after_backward(self)
        return loss

    def step(self) -> None:
        """Ends a micro-batch. At the boundary: reduce, check, clip, update and publish; else nothing."""
        self._open()
        if not self._synced:
            raise EngineError("step() inside no_sync(): leave the context first, gradients are not reduced within it")
        boundary = self.is_gradient_accumulation_boundary()
        self.micro_steps += 1
        self.global_samples += self.plan.batch.micro * self.plan.batch.replicas
        self._updated = False
        if not boundary:
            return
        for observer in self.observers:
            observer.before_step(self)
        self._update()
        for observer in self.observers:
            observer.after_step(self, updated=self._updated)

    def _update(self) -> None:
        scale = self.scaler.scale if self.scaler.active else 1.0
        self.driver.loss_scale = scale
        self.driver.reduce()
        norm = self.driver.norm()
        self._norm = norm
        self._losses.end_update()
        report = "" if norm.finite else overflow_report(self.module, norm.bad, step=self.global_steps, scale=scale)
        try:
            accepted = self.scaler.judge(norm.finite, report=report)
        except BaseException:
            self.driver.discard()
            raise
        limit = self._clip_at if self._clip is None else self._clip
        self._clip = None
        if accepted:
            self.driver.update(factor=clip_factor(norm.value, limit))
            if self.schedule is not None:
                self.schedule.advance()
        else:
            self.driver.discard()
            self.skipped_steps += 1
        self.driver.loss_scale = self.scaler.scale if self.scaler.active else 1.0
        self._updated = accepted
        self.global_steps += 1

    def train_batch(self, data: Iterator[Any] | None = None) -> Tensor:
        """One whole update from an iterator of micro-batches (or the engine's own loader); gives the mean loss."""
        return self.loop.train_batch(self._data(data))

    def eval_batch(self, data: Iterator[Any], **options: Any) -> Tensor:
        """The mean loss over one update's worth of micro-batches, without gradients."""
        return self.loop.eval_batch(self._data(data), **options)

    def _data(self, data: Any) -> Iterator[Any]:
        source = self.training_dataloader if data is None else data
        if source is None:
            raise EngineError("train_batch() without data: pass an iterator, or training_data= to dsx.initialize")
        if isinstance(source, Iterator):
            return source
        key = "_iterator_of_loader"
        if data is None:
            held = self.__dict__.get(key)
            if held is None:
                from dsx.data.loader import RepeatingLoader

                held = self.__dict__[key] = iter(RepeatingLoader(source))
            return held
        raise EngineError(
            f"data is a {type(source).__name__}, wanted an iterator: pass iter(loader), kept over calls, "
            "or each update would begin anew"
        )

    def zero_grad(self) -> None:
        """Forget the gradients since the last update."""
        self.driver.discard()
        self._losses.drop()

    # Gradients -----------------------------------------------------------------------------------------------------

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step() updates."""
        if self._boundary is not None:
            return self._boundary
        if not self.config.managed_gradient_accumulation:
            return True
        return (self.micro_steps + 1) % self._accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Say yourself whether the next step() updates; ``None`` gives the counting back to the engine."""
        self._boundary = is_boundary

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within add up locally and are reduced by the next one outside, in any stage."""
        before, self._synced = self._synced, False
        try:
            yield
        finally:
            self._synced = before

    def clip(self, max_norm: float, *, norm_type: float = 2.0) -> Clipped:
        """Clip the gradients of the coming update; gives their norm before and after."""
        self._reduce()
        norm = self.driver.norm(order=norm_type)
        factor = clip_factor(norm.value, max_norm)
        if factor < 1.0:
            self.driver.scale_gradients(factor)
        return Clipped(norm.value, norm.value * factor)

    def grad_norm(self, norm_type: float = 2.0) -> float:
        """The norm of the gradients as they are now, over the whole model, before an update."""
        self._reduce()
        return self.driver.norm(order=norm_type).value

    def _reduce(self) -> None:
        self.driver.loss_scale = self.scaler.scale if self.scaler.active else 1.0
        self.driver.reduce()

    def gradient(self, name: str) -> Tensor | None:
        """The whole gradient of one parameter, unscaled, fp32, in every stage; a collective."""
        self._reduce()
        return self.driver.gradient(name)

    def set_gradient(self, name: str, value: Tensor) -> None:
        """Replace the gradient of one parameter before the update; the same value on each rank."""
        self._reduce()
        self.driver.set_gradient(name, value)

    def local_gradient(self, name: str) -> Tensor | None:
        """This rank's part of a reduced gradient, a flat view as it is kept: edits count in norm and update."""
        self._reduce()
        return self.driver.local_gradient(name)

    def set_local_gradient(self, name: str, value: Tensor | float) -> None:
        """Overwrite this rank's part of a reduced gradient, in the units of :meth:`local_gradient`."""
        part = self.local_gradient(name)
        if part is not None:
            part.copy_(torch.as_tensor(value, dtype=part.dtype, device=part.device).expand_as(part))

    def get_global_grad_norm(self) -> float | None:
        """The norm that the last update saw, unscaled, before clipping; ``None`` before the first."""
        return None if self._norm is None else self._norm.value

    # Weights and state ---------------------------------------------------------------------------------------------

    def gathered(self, names: Sequence[str] | None = None, *, writer: int | None = None) -> AbstractContextManager[None]:
        """Parameters whole within the context; with a writer rank, its edits reach all ranks."""
        return self.driver.gathered(names, writer=writer)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole fp32 weights and buffers by name, on the host, on each rank; the same in every stage."""
        return self.driver.full_state_dict()

    def state_bytes(self) -> tuple[StateBytes, StateBytes]:
        """Bytes of training state on this rank: (predicted, counted)."""
        return self.driver.state_bytes()

    def save_checkpoint(
        self,
        save_dir: str | Path,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        *,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> Path:
        """Write a checkpoint that any number of ranks, in any stage, can load. Legal at any time; changes nothing.

        In the middle of an accumulation the gradients so far are not in it; the running engine keeps them.
        """
        return saving.save(
            self, Path(save_dir), tag=tag, client_state=client_state or {}, latest=save_latest, frozen=not exclude_frozen_parameters
        )

    def load_checkpoint(
        self,
        load_dir: str | Path,
        tag: str | None = None,
        *,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[Path, dict[str, Any]]:
        """Go on from a checkpoint; gives (its folder, client_state). Gradients in progress are dropped.

        With ``load_module_only``, or without optimizer states, masters are the loaded weights.
        """
        return saving.load(
            self,
            Path(load_dir),
            tag=tag,
            strict=load_module_strict,
            optimizer=load_optimizer_states and not load_module_only,
            schedule=load_lr_scheduler_states and not load_module_only,
            progress=not load_module_only,
        )

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

    # Life ----------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed: make a new one with dsx.initialize")

    def close(self, *, whole: bool = True) -> None:
        """Release hooks, buffers and groups. The module keeps whole weights and can be used without dsx.

        Without ``whole`` nothing is gathered, so that a rank that has failed waits for no other; parameters that
        rest as shards are then lost. Everything is released even where a step of it raises.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            stack.callback(self.__dict__.pop, "_iterator_of_loader", None)
            stack.callback(self.mesh.close)
            stack.callback(self.cleanups.close)
            stack.callback(self.plugins.teardown, self)
            stack.callback(self.driver.close, whole=whole)
            for observer in reversed(self.observers):
                stack.callback(observer.close, self)

    destroy = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(whole=error is None)

