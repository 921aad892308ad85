"""Bytes: what each rank holds of the training state, and what it sends in a step, against ZeRO's formulas."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import dsx
from benchmarks.meters import live_tensor_bytes, loopback_bytes
from benchmarks.processes import run_ranks
from benchmarks.table import Row, cell, near

STAGES, WORLDS = (0, 1, 2, 3), (1, 2, 4, 8)
WIDTH, LAYERS = 256, 16
WINDOWS, STEPS = 5, 2


class Tower(nn.Module):
    """Square layers, about a million parameters at the usual width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.float().square().mean()


def engine_for(*, stage: int, bf16: bool, width: int) -> tuple[dsx.Engine, Tensor, int]:
    """An engine over a tower, an input for it, and the number of its parameters."""
    model = Tower(width)
    count = sum(parameter.numel() for parameter in model.parameters())
    sharding = {"stage": stage}
    if stage == 3:  # every parameter is sharded, and released after each use: 3P on the wire
        sharding |= {"stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": sharding,
    }
    if bf16:
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}
    engine, *_ = dsx.initialize(model=model, config=config)
    return engine, torch.randn(1, width, dtype=torch.bfloat16 if bf16 else torch.float32), count


def hold(stage: int) -> dict[str, Any]:
    """One rank: the bytes it holds once an update is made and the next one's gradients are there."""
    torch.set_num_threads(1)
    engine, x, count = engine_for(stage=stage, bf16=True, width=WIDTH)
    with engine:
        engine.train_batch(iter([(x,)]))
        engine.backward(engine(x))
        engine.grad_norm()  # completes the reduction
        _, counted = engine.state_bytes()
        live = live_tensor_bytes()
    return {"parameters": count, "counted": asdict(counted), "live": live}


def send(stage: int, width: int) -> dict[str, Any]:
    """One rank: bytes that it and the whole machine send in a step; the quietest of several windows."""
    torch.set_num_threads(1)
    engine, x, count = engine_for(stage=stage, bf16=False, width=width)
    x.requires_grad_()  # else backward does not need the first layer's weights, and stage 3 does not gather them again
    with engine:
        group = engine.data_group
        for _ in range(2):  # the first step allocates, the second follows the recorded order
            engine.train_batch(iter([(x,)]))
        accounted, machine = [], []
        for _ in range(WINDOWS):
            group.barrier(site="window begins")
            own, whole = group.account.total.bytes, loopback_bytes()
            for _ in range(STEPS):
                engine.train_batch(iter([(x,)]))
            group.barrier(site="window ends")
            accounted.append((group.account.total.bytes - own) / STEPS)
            machine.append((loopback_bytes() - whole) / STEPS)
    return {"parameters": count, "accounted": min(accounted), "machine": min(machine)}


def formula(stage: int, parameters: int, ranks: int) -> float:
    """Bytes of training state on each rank: bf16 weights and gradients, fp32 masters and two moments."""
    weights, gradients, optimizer = 2.0 * parameters, 2.0 * parameters, 12.0 * parameters
    sharded_from = {1: optimizer, 2: gradients, 3: weights}
    return sum(size / ranks if stage >= first else size for first, size in sharded_from.items())


def state_rows(worlds: tuple[int, ...]) -> list[Row]:
    """State bytes of each stage and world size, on the rank that holds most."""
    table = []
    for world in worlds:
        for stage in STAGES:
            ranks = run_ranks("benchmarks.bytes:hold", {"stage": stage}, world=world)
            most = max(ranks, key=lambda rank: sum(rank["counted"].values()))
            counted = most["counted"]
            buffers = counted["buffers"] + counted["kept"]
            state = sum(counted.values()) - buffers
            wanted = formula(stage, most["parameters"], world)
            what = f"state, stage {stage}, {world} rank(s)"
            note = f"named buffers {cell(buffers / 2**20)} MiB; all live tensors {cell(most['live'] / 2**20)} MiB"
            table.append(near(what, state / 2**20, wanted / 2**20, within=0.01, unit="MiB a rank", note=note))
            what = f"state, stage {stage}, {world} rank(s), all live tensors"
            held = (wanted + buffers) / 2**20
            table.append(near(what, most["live"] / 2**20, held, within=0.01, unit="MiB a rank"))
    return table


def wire_rows(world: int) -> list[Row]:
    """Bytes sent in a step by each rank, by our own account and by the machine's loopback counter."""
    table = []
    for stage, volume in ((1, 2), (2, 2), (3, 3)):
        ranks = run_ranks("benchmarks.bytes:send", {"stage": stage, "width": 512}, world=world)
        wanted = volume * 4 * ranks[0]["parameters"] * (world - 1) / world / 2**20
        sent = max(rank["accounted"] for rank in ranks) / 2**20
        machine = min(rank["machine"] for rank in ranks) / world / 2**20
        formula_of = f"{volume}P elements × {world - 1}/{world}"
        for how, value in (("by our account", sent), ("by the loopback counter", machine)):
            what = f"wire, stage {stage}, {world} ranks, {how}"
            table.append(near(what, value, wanted, within=0.01, unit="MiB a rank and step", note=formula_of))
    return table


def rows(*, short: bool) -> list[Row]:
    """State bytes, then wire bytes."""
    if not os.path.exists("/proc/net/dev"):
        raise OSError("the wire is measured with the loopback counters of Linux")
    return [*state_rows((1, 2) if short else WORLDS), *wire_rows(2)]
