"""The front doors. Each is a short list of steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dsx.accelerator.base import choose
from dsx.config.load import load_config
from dsx.config.root import DsxConfig
from dsx.deferred.recorder import deferred
from dsx.deprecations import warn_deprecated
from dsx.engine.build import build_engine
from dsx.engine.engine import Engine
from dsx.errors import ConfigError
from dsx.mesh.init import init_distributed
from dsx.mesh.world import world_from_env
from dsx.planning.make import make_plan
from dsx.planning.plan import Plan
from dsx.plugin.manager import PluginManager, plugin_manager
from dsx.plugin.roles import Accelerator
from dsx.plugin.types import Facts, World
from dsx.registry.registry import Registry

__all__ = ["construct", "init_distributed", "initialize", "make_plan"]

Config = Mapping[str, Any] | str | Path | DsxConfig | None


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: None = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Config = None,
    mesh_param: None = None,
    config_params: Config = None,
    *,
    plugins: PluginManager | Sequence[object | str] = (),
) -> tuple[Engine, Any, Any, Any]:
    """A model ready to train: (engine, optimizer, data loader, learning-rate schedule).

    Args:
        args: a namespace whose ``deepspeed_config`` or ``dsx_config`` names a file, where ``config`` is not given.
        model: any module; on any device, or built under ``dsx.construct``.
        optimizer: a torch optimizer over the model's parameters, or a callable that makes one; else the configured one.
        model_parameters: what to train, as parameters or groups of them; all that require gradients by default.
        training_data: a dataset; the engine then deals it out over the data-parallel ranks.
        lr_scheduler: a torch scheduler over ``optimizer``, a callable that makes one, or ``None``.
        distributed_port: where rank 0 listens, if the environment does not say.
        dist_init_required: ``False`` forbids making the process group here.
        collate_fn: makes a batch of samples, as in torch's DataLoader.
        config: a mapping, a path, JSON text, or a loaded configuration. ``config_params`` is its older name, and
            goes away: see ``dsx.deprecations``.
        plugins: further ones, beside those that are installed.

    Raises:
        DsxError: the configuration or the model cannot run; before any process group exists where that can be known.
    """
    model = _checked(model, mpu=mpu, mesh_param=mesh_param)
    manager = plugins if isinstance(plugins, PluginManager) else plugin_manager(extra=tuple(plugins))
    registry = Registry(manager)
    accelerator = choose(registry=registry)
    chosen = _config(args, config, config_params)
    plan = make_plan(chosen, world=world_from_env(), facts=facts_of(model, accelerator), plugins=manager)
    if plan.world.size > 1 and dist_init_required is not False:
        place = meeting_place(plan.world, distributed_port)
        init_distributed(device_type=accelerator.device_type, timeout=plan.config.comm_timeout, init_method=place)
    engine = build_engine(
        plan,
        model,
        registry=registry,
        accelerator=accelerator,
        optimizer=optimizer,
        model_parameters=model_parameters,
        lr_scheduler=lr_scheduler,
    )
    if training_data is not None:
        engine.training_dataloader = make_loader(engine, training_data, collate_fn=collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _checked(model: nn.Module | None, **untaken: None) -> nn.Module:
    if model is None:
        raise ConfigError("dsx.initialize needs a model: pass model=your torch.nn.Module")
    for name, value in untaken.items():
        if value is not None:
            raise ConfigError(f"{name}= is not taken: mesh axes come from the configuration's sections, see Plan.axes")
    return model


def _config(args: Any, config: Config, config_params: Config) -> Config:
    if config is not None and config_params is not None:
        raise ConfigError("both config= and config_params= are given: keep config=")
    if config is not None:
        return config
    if config_params is not None:
        warn_deprecated("config_params")
        return config_params
    for name in ("dsx_config", "deepspeed_config"):
        if getattr(args, name, None) is not None:
            return str(getattr(args, name))
    raise ConfigError("dsx.initialize needs a configuration: pass config= a mapping, a path or JSON text")


def meeting_place(world: World, port: int) -> str | None:
    """Where ranks of one machine meet if their starter named no place; ``None`` leaves it to the environment."""
    if "MASTER_ADDR" in os.environ or dist.is_initialized() or world.local_size < world.size:
        return None
    return f"tcp://127.0.0.1:{port}"


def facts_of(model: nn.Module | None, accelerator: Accelerator) -> Facts:
    """What planning may know of this model and machine."""
    sizes = [param.numel() for param in model.parameters()] if model is not None else []
    return Facts(
        parameters=sum(sizes) if model is not None else None,
        largest_parameter=max(sizes, default=0) if model is not None else None,
        device=accelerator.device_type,
        native_bf16=accelerator.native_bf16(),
    )


def make_loader(engine: Engine, dataset: Any, *, collate_fn: Callable[..., Any] | None) -> Any:
    """The engine's own loader over the data-parallel ranks."""
    from dsx.data.loader import Loader

    group = engine.data_group
    return Loader(
        dataset,
        batch_size=engine.train_micro_batch_size_per_gpu(),
        rank=group.rank,
        size=group.size,
        seed=engine.config.seed,
        drop_last=engine.config.dataloader_drop_last,
        collate_fn=collate_fn,
        pin_memory=engine.device.type == "cuda",
    )


@contextmanager
def construct(config: Config, *, plugins: Sequence[object | str] = ()) -> Iterator[Plan]:
    """Around a model's constructor: parameters are described, not allocated; ``dsx.initialize`` makes each rank's part.

    Custom initialisation in the constructor is recorded and done then. Buffers are made at once, as they are.
    """
    manager = plugin_manager(extra=tuple(plugins))
    loaded = load_config(config, plugins=manager)
    plan = make_plan(
        loaded, world=world_from_env(), facts=facts_of(None, choose(registry=Registry(manager))), plugins=manager
    )
    with ExitStack() as stack:
        stack.enter_context(deferred())
        for tagged in manager.construct(plan):
            stack.enter_context(tagged.value)
        yield plan
