"""The engines that train the same model on the same data: dsx, DeepSpeed, FSDP2 and DDP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.meters import peak_rss, processor_seconds
from model import GPT, Shape
from text import Windows, library_sources

Step = Callable[[Tensor, Tensor], Tensor]
MICRO = 2
"""Sequences that a rank computes at once."""
RATE, BETAS, EPS, DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1


def adam(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """torch's own AdamW in its fastest form."""
    return torch.optim.AdamW(parameters, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)


def shared_config(*, stage: int, bf16: bool) -> dict[str, Any]:
    """What dsx and DeepSpeed both read. Clipping and buckets are stated, because DeepSpeed's defaults surprise."""
    size = 12_000_000
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": 1,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": RATE, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY},
        },
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": size},
        "bf16": {"enabled": bf16},
        "steps_per_print": 10**9,
    }


def build_dsx(model: GPT, *, stage: int, bf16: bool) -> Step:
    """Ours, with its defaults: no bucket size is stated."""
    import dsx

    config = shared_config(stage=stage, bf16=bf16)
    config["zero_optimization"] = {"stage": stage}
    engine, *_ = dsx.initialize(model=model, config=config)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = engine(x, y)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def build_deepspeed(model: GPT, *, stage: int, bf16: bool) -> Step:
    """DeepSpeed with its own CPU kernels."""
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    config = shared_config(stage=stage, bf16=bf16)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = engine(x, y)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def torch_step(run: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer, *, autocast: bool) -> Step:
    """A plain training step."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = run(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def build_ddp(model: GPT, *, stage: int, bf16: bool) -> Step:
    """torch's DistributedDataParallel; bf16 by autocast."""
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    if stage:
        raise ValueError("DDP shards nothing: it runs as stage 0")
    wrapped = DistributedDataParallel(model)
    return torch_step(wrapped, adam(wrapped.parameters()), autocast=bf16)


def build_fsdp2(model: GPT, *, stage: int, bf16: bool) -> Step:
    """torch's fully_shard, block by block. As stage 2 it keeps the parameters whole between forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("gloo")
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=stage == 3)
    return torch_step(model, adam(model.parameters()), autocast=False)


BUILDERS: dict[str, Callable[..., Step]] = {
    "dsx": build_dsx,
    "deepspeed": build_deepspeed,
    "ddp": build_ddp,
    "fsdp2": build_fsdp2,
}


def batches(rank: int, context: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of real text, other ones on each rank, the same for each engine."""
    windows = Windows(library_sources(most=1 << 20), length=context)
    dice = torch.Generator().manual_seed(7000 + rank)
    while True:
        drawn = [windows[int(n)] for n in torch.randint(len(windows), (MICRO,), generator=dice)]
        yield torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])


def contest(engine: str, stage: int, bf16: bool, warm: int, steps: int) -> dict[str, Any]:
    """One rank: build an engine, warm it up, then measure steps."""
    started = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    shape = Shape()
    step = BUILDERS[engine](GPT(shape), stage=stage, bf16=bf16)
    data = batches(int(os.environ["RANK"]), shape.context)
    ready = time.perf_counter() - started
    walls, losses, used = [], [], 0.0
    for turn in range(warm + steps):
        x, y = next(data)
        dist.barrier()
        processor, wall = processor_seconds(), time.perf_counter()
        losses.append(float(step(x, y)))
        if turn >= warm:
            walls.append(time.perf_counter() - wall)
            used += processor_seconds() - processor
    return {
        "walls": walls,
        "processor": used,
        "tokens": MICRO * shape.context * steps,
        "losses": losses,
        "rss": peak_rss(),
        "ready": ready,
    }
