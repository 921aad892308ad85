"""The engine: forward, backward, step and what belongs to them, under the names that people know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dsx.activation.current import recomputing
from dsx.engine import saving
from dsx.engine.base import EngineBase
from dsx.engine.clipping import Clipped, clip_factor
from dsx.engine.losses import check_loss
from dsx.engine.observers import close_observer
from dsx.engine.scaling import cast_inputs, scale_gradients
from dsx.errors import EngineError
from dsx.plugin.roles import StateBytes
from dsx.precision.overflow import overflow_report


class Engine(EngineBase):
    """Trains one model. Made by ``dsx.initialize``; closes itself as a context manager."""

    # Forward, backward, step ---------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, in the plan's precision.

        With bf16 or fp16 parameters, floating-point inputs are cast to that dtype, unless ``fp16.auto_cast`` is given
        as false; compute a loss that needs exact targets outside of the model.
        """
        self._open()
        for observer in self.observers:
            try:
                observer.before_forward(self)
            except Exception as error:
                self.blame(observer, error)
                raise
        scaled = self.scaler.active and torch.is_grad_enabled()
        if scaled:  # gradients that leave by the inputs are unscaled, so a model may be chained with itself or others
            args, kwargs = scale_gradients((args, kwargs), lambda: 1.0 / self._plain_scale())
        if self._inputs is not None or self.device.type != "cpu":
            args, kwargs = cast_inputs((args, kwargs), self._inputs, self.device)
        with self.driver.forward(), self._autocast(), recomputing(self._recompute):
            outputs = self.module(*args, **kwargs)
        if scaled:
            outputs = scale_gradients(outputs, self._plain_scale)
        for observer in self.observers:
            try:
                observer.after_forward(self)
            except Exception as error:
                self.blame(observer, error)
                raise
        return outputs

    forward = __call__

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.plan.precision.autocast
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def _plain_scale(self) -> float:
        return 1.0 if self._scaled_by_loss else self.scaler.scale

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        *,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
    ) -> Tensor:
        """Gradients of one micro-batch's loss. Several before a step add up. Gives the loss back.

        The update divides by the micro-batches of an accumulation; with ``scale_wrt_gas=False`` this loss counts in
        full, as one that is divided already.
        """
        self._open()
        check_loss(loss, gradient)
        for observer in self.observers:
            try:
                observer.before_backward(self)
            except Exception as error:
                self.blame(observer, error)
                raise
        self.driver.expect(last=self.is_gradient_accumulation_boundary() and self._synced, hold=not self._synced)
        factor = self.scaler.scale * (1.0 if scale_wrt_gas else self._accumulation)
        scaled = loss if factor == 1.0 else loss * factor
        self._scaled_by_loss = True
        try:
            scaled.backward(gradient, retain_graph=retain_graph)
        finally:
            self._scaled_by_loss = False
            self.driver.expect(last=False, hold=not self._synced)
        self._losses.add(loss)
        for observer in self.observers:
            try:
                observer.after_backward(self)
            except Exception as error:
                self.blame(observer, error)
                raise
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
            try:
                observer.before_step(self)
            except Exception as error:
                self.blame(observer, error)
                raise
        self._update()
        for observer in self.observers:
            try:
                observer.after_step(self, updated=self._updated)
            except Exception as error:
                self.blame(observer, error)
                raise

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
        if accepted:
            self.driver.update(factor=clip_factor(norm.value, self._clip_at))
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
        if data is None:
            if self._batches is None:
                from dsx.data.loader import RepeatingLoader

                self._batches = iter(RepeatingLoader(source))
            return self._batches
        raise EngineError(
            f"data is a {type(source).__name__}, wanted an iterator: pass iter(loader), kept over calls, "
            "or each update would begin anew"
        )

    def zero_grad(self) -> None:
        """Forget the gradients since the last update."""
        self._open()
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
        self._open()
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

    def gathered(
        self, names: Sequence[str] | None = None, *, writer: int | None = None
    ) -> AbstractContextManager[None]:
        """Parameters whole within the context; with a writer rank, its edits reach all ranks."""
        self._open()
        return self.driver.gathered(names, writer=writer)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole fp32 weights and buffers by name, on the host, on each rank; the same in every stage."""
        self._open()
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
        self._open()
        return saving.save(
            self,
            Path(save_dir),
            tag=tag,
            client_state=client_state or {},
            latest=save_latest,
            frozen=not exclude_frozen_parameters,
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
        self._open()
        return saving.load(
            self,
            Path(load_dir),
            tag=tag,
            strict=load_module_strict,
            optimizer=load_optimizer_states and not load_module_only,
            schedule=load_lr_scheduler_states and not load_module_only,
            progress=not load_module_only,
        )

    # Life ----------------------------------------------------------------------------------------------------------

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
                stack.callback(close_observer, observer, self)

    destroy = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(whole=error is None)
