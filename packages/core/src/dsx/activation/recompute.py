"""Forget a function's activations in forward and compute them again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from dsx.activation.current import current
from dsx.activation.settings import ActivationSettings

DEFAULT = ActivationSettings()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = False,
    settings: ActivationSettings | None = None,
    **kwargs: Any,
) -> Any:
    """``function(*args, **kwargs)``, whose activations are computed again in backward.

    Gradients are those of a plain call, also where no input requires one, and for tensors among the keyword
    arguments. Random numbers are drawn again from the same state, on CPU and CUDA. settings: everything else that can
    be chosen; without them, those of the engine whose forward this is (its section ``activation_checkpointing``), and
    ``use_reentrant`` picks torch's implementation. The reentrant one sees tensors only where
    they are arguments themselves, not inside lists.
    """
    chosen = replace(current() or DEFAULT, use_reentrant=use_reentrant) if settings is None else settings
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    names, positional = tuple(kwargs), len(args)

    # Keyword arguments go by position: only so does torch track, keep and offload them.
    def run(*everything: Any) -> Any:
        given = everything[:positional]
        named = dict(zip(names, everything[positional : positional + len(names)], strict=True))
        with _boundary(chosen):
            return function(*given, **named)

    flat = (*args, *kwargs.values())
    if chosen.use_reentrant and not any(isinstance(arg, Tensor) and arg.requires_grad for arg in flat):
        # Without an input that requires a gradient the reentrant kind would give the parameters none.
        flat = (*flat, torch.zeros((), requires_grad=True))
    with _offloaded() if chosen.offload else nullcontext():
        return torch_checkpoint(
            run, *flat, use_reentrant=chosen.use_reentrant, preserve_rng_state=chosen.preserve_rng_state
        )


def reentrant(
    function: Callable[..., Any], *args: Any, settings: ActivationSettings | None = None, **kwargs: Any
) -> Any:
    """``checkpoint`` by torch's reentrant implementation."""
    chosen = replace(settings or current() or DEFAULT, use_reentrant=True)
    return checkpoint(function, *args, settings=chosen, **kwargs)


@contextmanager
def _boundary(settings: ActivationSettings) -> Iterator[None]:
    mark: AbstractContextManager[Any] = record_function("dsx.checkpoint") if settings.profile else nullcontext()
    if settings.synchronize:
        _synchronize()
    with mark:
        yield
    if settings.synchronize:
        _synchronize()


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _offloaded() -> saved_tensors_hooks:
    """Saved tensors rest on the host. Parameters stay: they live on the device anyway."""
    return saved_tensors_hooks(to_host, from_host)


def to_host(tensor: Tensor) -> tuple[torch.device, Tensor]:
    """The device a saved tensor was on, and where it rests."""
    if tensor.device.type == "cpu" or isinstance(tensor, nn.Parameter):
        return tensor.device, tensor
    resting = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
    # The copy back runs on the same stream, so it comes after this one.
    resting.copy_(tensor, non_blocking=True)
    return tensor.device, resting


def from_host(saved: tuple[torch.device, Tensor]) -> Tensor:
    """A saved tensor on its device again."""
    device, tensor = saved
    return tensor.to(device, non_blocking=True)
