"""What one rank of ``check_driver`` does: every law in turn, each told of in one line where it is broken."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dsx
from dsx.engine.engine import Engine
from dsx.optim.make import optimizer_class
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry
from dsx.testing.awkward import MICRO, Awkward, awkward_batch
from dsx.testing.leaks import Traces
from dsx.testing.parity import Course, plain, steered, weights_apart

CLIP = 0.7
"""Below the norms of the first updates, so that it clips."""

APART = 2
"""Factor between predicted and counted bytes: a model this small is padded by a good part of its size."""


@dataclass(frozen=True, slots=True)
class Task:
    """One configuration to check."""

    config: Mapping[str, Any]
    plugins: tuple[str, ...]
    updates: int
    tolerance: float
    folder: str


def observe(task: Task) -> list[str]:
    """The laws that this rank saw broken; the same collectives on every rank, whatever it finds."""
    traces = Traces.now()
    problems = [*_parity(task), *_weights(task), *_gradients(task), *_reload(task), *_closed(task)]
    return [*problems, *(f"close: left behind: {left}" for left in traces.left_behind())]


def _engine(task: Task, model: nn.Module, *, accumulation: int = 1, clip: float = 0.0) -> Engine:
    config = {
        **task.config,
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
    }
    return dsx.initialize(model=model, config=config, plugins=task.plugins)[0]


def _parity(task: Task) -> Iterator[str]:
    for accumulation, clip, by_loss in ((1, 0.0, True), (2, CLIP, False)):
        with _engine(task, Awkward(), accumulation=accumulation, clip=clip) as engine:
            scale = engine.scaler.scale if engine.scaler.active else 1.0
            dtype, world = engine.plan.precision.parameter, engine.data_group.size
            course = steered(engine, awkward_batch, updates=task.updates, plain_backward=by_loss)
        model = Awkward()
        reference = plain(
            model,
            awkward_batch,
            optimizer=_reference(task, model),
            updates=task.updates,
            accumulation=accumulation,
            world=world,
            clip=clip,
            dtype=dtype,
            scale=scale,
        )
        gap = course.apart(reference)
        if not gap <= task.tolerance:
            how = "loss.backward()" if by_loss else "engine.backward()"
            yield (
                f"parity: with accumulation {accumulation}, clipping {clip} and {how}, {_worst(course, reference)} "
                f"from plain PyTorch's, wanted at most {task.tolerance:g}"
            )


def _reference(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    """The configured optimizer, alone, over the model's parameters."""
    registry = Registry(plugin_manager(extra=task.plugins))
    section = _Section(**task.config["optimizer"])
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    group = {"params": [p for _, p in named], "param_names": [name for name, _ in named]}
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in section.params.items()}
    made: torch.optim.Optimizer = optimizer_class(section, registry=registry)([group], **params)
    return made


@dataclass(frozen=True, slots=True)
class _Section:
    type: str
    params: Mapping[str, Any]


def _worst(course: Course, reference: Course) -> str:
    """Which number is away, and by how much."""
    losses = max(abs(a - b) for a, b in zip(course.losses, reference.losses, strict=True))
    norms = max(abs(a - b) for a, b in zip(course.norms, reference.norms, strict=True))
    weights = weights_apart(course.weights, reference.weights)
    return f"losses are up to {losses:g}, norms {norms:g}, weights {weights:g}"


def _weights(task: Task) -> Iterator[str]:
    """Whole weights by name, the same on each rank; gathered, edited by one, and counted."""
    model = Awkward()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    with _engine(task, model) as engine:
        steered(engine, awkward_batch, updates=1)
        state = engine.full_state_dict()
        found = {name: tuple(value.shape) for name, value in state.items()}
        if found != shapes:
            odd = sorted(name for name in {*found, *shapes} if found.get(name) != shapes.get(name))
            yield f"same: full_state_dict has other names or shapes than the model: {', '.join(odd)}"
            return
        if len(set(engine.mesh.world_group.exchange_objects(_mark(state), site="a test's weights"))) > 1:
            yield "same: ranks hold different weights after an update"
        yield from _gathered(engine, state, shapes)
        predicted, counted = engine.state_bytes()
        if not predicted.total / APART <= counted.total <= predicted.total * APART:
            yield f"bytes: {counted.total} bytes of state are held, {predicted.total} were predicted"


def _gathered(engine: Engine, state: Mapping[str, Tensor], shapes: Mapping[str, Any]) -> Iterator[str]:
    names = [name for name, _ in engine.module.named_parameters()]
    with engine.gathered():
        for name, param in engine.module.named_parameters():
            if tuple(param.shape) != shapes[name]:
                yield f"gathered: parameter {name} has shape {tuple(param.shape)} within, wanted {shapes[name]}"
            elif not torch.equal(param.detach().float().cpu(), state[name].to(param.dtype).float()):
                yield f"gathered: parameter {name} has other elements within than in full_state_dict"
    last, name = engine.mesh.world_group.size - 1, next(name for name in names if name.endswith("leave.weight"))
    with engine.gathered([name], writer=last):
        if engine.mesh.world_group.rank == last:
            with torch.no_grad():
                dict(engine.module.named_parameters())[name].fill_(0.25)
    if not bool((engine.full_state_dict()[name] == 0.25).all()):
        yield f"gathered: what rank {last} wrote into {name} is not seen everywhere"


def _mark(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in state.items():
        digest.update(name.encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _gradients(task: Task) -> Iterator[str]:
    """Gradients by name before an update; those of a discarded backward leave no trace."""
    with _engine(task, Awkward()) as engine:
        world, rank = engine.data_group.size, engine.data_group.rank
        dtype = engine.plan.precision.parameter
        engine.backward(engine(*awkward_batch(7, 0, rank)))
        engine.zero_grad()
        engine.backward(engine(*awkward_batch(0, 0, rank)))
        reader = Awkward().to(dtype)
        for other in range(world):
            batch = awkward_batch(0, 0, other)
            (reader(*(value.to(dtype) for value in batch)) / world).backward()
        limit = task.tolerance if dtype == torch.float32 else 4 * task.tolerance  # sums of numbers rounded one by one
        for name, param in reader.named_parameters():
            found = engine.gradient(name) if param.requires_grad else None
            gap = _apart(found, param.grad)
            if not gap <= limit:
                yield f"gradient: that of {name} is up to {gap:g} from plain PyTorch's, wanted at most {limit:g}"
                break
        engine.step()


def _apart(found: Tensor | None, wanted: Tensor | None) -> float:
    if found is None or wanted is None:  # nobody touched it: nothing and zeros are the same gradient
        some = found if found is not None else wanted
        return 0.0 if some is None or not some.numel() else float(some.abs().max())
    if found.shape != wanted.shape:
        return float("inf")
    return float((found.float().cpu() - wanted.float()).abs().max()) if found.numel() else 0.0


def _reload(task: Task) -> Iterator[str]:
    with _engine(task, Awkward(), accumulation=2) as engine:
        steered(engine, awkward_batch, updates=2)
        engine.save_checkpoint(task.folder, client_state={"word": "kept"})
        wanted = steered(engine, awkward_batch, updates=2)
    with _engine(task, Awkward(seed=9), accumulation=2) as engine:
        _, client = engine.load_checkpoint(task.folder)
        found = steered(engine, awkward_batch, updates=2)
    if client.get("word") != "kept":
        yield f"reload: client_state came back as {client}"
    if found.losses != wanted.losses:
        yield f"reload: losses are {found.losses} after a reload, {wanted.losses} without"
    other = [name for name, value in wanted.weights.items() if not torch.equal(value, found.weights[name])]
    if other:
        yield f"reload: after two more updates these weights differ from an uninterrupted course: {', '.join(other)}"


def _closed(task: Task) -> Iterator[str]:
    model = Awkward()
    engine = _engine(task, model)
    steered(engine, awkward_batch, updates=1)
    state, dtype = engine.full_state_dict(), engine.plan.precision.parameter
    engine.close()
    engine.close()
    for name, param in model.named_parameters():
        if name not in state:
            continue
        if tuple(param.shape) != tuple(state[name].shape):
            yield f"close: parameter {name} has shape {tuple(param.shape)}, wanted {tuple(state[name].shape)}"
            return
        if not torch.equal(param.detach().float().cpu(), state[name].to(param.dtype).float()):
            yield f"close: parameter {name} has lost its last weights"
    loss = model(*(value.to(dtype) for value in awkward_batch(0, 0, 0)))
    loss.backward()
    if not bool(torch.isfinite(loss)) or not isinstance(model.leave.weight.grad, Tensor):
        yield "close: the module does not train without its engine"
