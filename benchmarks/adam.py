"""One Adam update of a flat tensor far larger than any cache: ours, torch's, DeepSpeed's, and a plain copy."""

from __future__ import annotations

import importlib.util
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import Row, spread

SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
FP32, BF16 = torch.float32, torch.bfloat16
UNIT = "ns/element"
SETTLE = 0.01
"""Seconds between two updates: the threads of an OpenMP runtime spin for a while after they are done."""

OURS = "dsx, fp32 states"
OURS_BF16 = "dsx, bf16 states"
OURS_COPIES = "dsx, bf16 gradients and weights around an fp32 master"
OURS_ALL_BF16 = "dsx, bf16 throughout"
FUSED, LOOP, DEEPSPEED = "torch fused", "torch loop", "DeepSpeedCPUAdam"
FUSED_COPIES, DEEPSPEED_COPIES = "torch fused and two copies", "DeepSpeedCPUAdam and two copies"
FUSED_ALL_BF16 = "torch fused, bf16 throughout"
COPY = "copy"


@dataclass(frozen=True)
class Contest:
    """Who is held against whom. ``limit`` None: shown for comparison."""

    what: str
    ours: str
    peer: str
    limit: float | None = None


CONTESTS = (
    Contest("fp32 states", OURS, FUSED, 1.0),
    Contest("fp32 states", OURS, DEEPSPEED, 1.0),
    Contest("fp32 states", OURS, LOOP, 7.0),
    Contest("bf16 states", OURS_BF16, FUSED, 1.4),
    Contest("bf16 states", OURS_BF16, DEEPSPEED, 1.4),
    Contest("bf16 gradients and weights, fp32 master and states", OURS_COPIES, FUSED_COPIES),
    Contest("bf16 gradients and weights, fp32 master and states", OURS_COPIES, DEEPSPEED_COPIES),
    Contest("bf16 throughout", OURS_ALL_BF16, FUSED_ALL_BF16),
)
BYTES = {OURS: 28, OURS_BF16: 20, OURS_COPIES: 28, OURS_ALL_BF16: 14, COPY: 8}
"""Bytes read and written per element, as the algorithm needs them."""


@dataclass
class Times:
    """Nanoseconds per element, one figure a round."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def ratio(self, ours: str, peer: str) -> float:
        """How many times as fast as the peer: the median over rounds, so that what slowed a round slowed both."""
        pairs = zip(self.rounds[ours], self.rounds[peer], strict=True)
        return statistics.median(theirs / mine for mine, theirs in pairs)


def rows(*, short: bool) -> list[Row]:
    """Each contest on one thread by processor time, and on two by the clock; then shares of a copy's bandwidth."""
    n = 1 << (24 if short else 25)
    contestants = everyone(n)
    before = torch.get_num_threads()
    found: list[Row] = []
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        torch.set_num_threads(threads)
        times = alternate(contestants, n=n, rounds=7 if short else 31, alone=threads == 1)
        where = "1 thread" if threads == 1 else f"{threads} threads"
        found += [result(contest, times, where) for contest in CONTESTS]
        found += [share(name, times, where) for name in BYTES if name != COPY]
    torch.set_num_threads(before)
    return found


def alternate(contestants: Mapping[str, Callable[[], object]], *, n: int, rounds: int, alone: bool) -> Times:
    """Time everyone once a round, in an order drawn anew, each from caches full of what nobody needs."""
    clock = time.process_time if alone else time.perf_counter
    draw = random.Random(0)
    times = Times({name: [] for name in contestants})
    other = torch.ones(n)
    for number in range(rounds + 1):
        for name in draw.sample(list(contestants), len(contestants)):
            other.sum()  # otherwise the next would write back the changed lines that the last one left
            if not alone:
                time.sleep(SETTLE)
            started = clock()
            contestants[name]()
            taken = clock() - started
            if number:  # the first round touches the memory
                times.rounds[name].append(taken / n * 1e9)
    return times


def result(contest: Contest, times: Times, where: str) -> Row:
    """The row of one contest. A peer that is not here has not been beaten."""
    what = f"{contest.what}, {where}, against {contest.peer}"
    goal = "" if contest.limit is None else f"≥ {contest.limit:g} × {contest.peer}"
    mine = times.median(contest.ours)
    if contest.peer not in times.rounds:
        holds = None if contest.limit is None else False
        return Row(what, mine, None, UNIT, None, contest.limit, goal, holds, "peer not installed")
    ratio = times.ratio(contest.ours, contest.peer)
    holds = None if contest.limit is None else ratio >= contest.limit
    note = f"ours {spread(times.rounds[contest.ours])}; peer {spread(times.rounds[contest.peer])}"
    return Row(what, mine, times.median(contest.peer), UNIT, ratio, contest.limit, goal, holds, note)


def share(name: str, times: Times, where: str) -> Row:
    """The bandwidth of one of ours beside that of torch copying a tensor."""
    mine, copied = (BYTES[each] / times.median(each) for each in (name, COPY))
    return Row(f"bandwidth, {name}, {where}", mine, copied, "GB/s", mine / copied, None, "", None, "peer: torch's copy")


@dataclass(frozen=True)
class Memory:
    """Weights, gradient and moments of one dtype each, which all contestants of that mixture share.

    Where the system happened to put a tensor makes a difference of some percent: it must not decide.
    """

    weights: torch.nn.Parameter
    moments: tuple[Tensor, Tensor]

    def optimizer(self, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """An optimizer over these weights, with its states here too."""
        made.step()
        state = made.state[self.weights]
        state["exp_avg"], state["exp_avg_sq"] = self.moments
        return made


def memory(n: int, weights: torch.dtype, moments: torch.dtype) -> Memory:
    """Fresh memory; the gradient is in the dtype of the weights."""
    parameter = torch.nn.Parameter(torch.zeros(n, dtype=weights))
    parameter.grad = gradients(n).to(weights)
    return Memory(parameter, (torch.zeros(n, dtype=moments), torch.zeros(n, dtype=moments)))


def everyone(n: int) -> dict[str, Callable[[], object]]:
    """All contestants by name: what each does for one update."""
    wide, narrow = memory(n, FP32, FP32), memory(n, BF16, BF16)
    mixed = Memory(wide.weights, narrow.moments)
    low, low_grad, target = torch.zeros(n, dtype=BF16), gradients(n).to(BF16), torch.zeros(n)
    source = gradients(n)

    def with_copies(update: Callable[[], object]) -> Callable[[], object]:
        """What a copy-out saves: an fp32 optimizer between bf16 gradients and bf16 weights."""

        def update_and_copy() -> None:
            assert wide.weights.grad is not None
            wide.weights.grad.copy_(low_grad)
            update()
            low.copy_(wide.weights.detach())

        return update_and_copy

    found: dict[str, Callable[[], object]] = {
        OURS: ours(wide),
        OURS_BF16: ours(mixed),
        OURS_COPIES: ours(wide, grad=low_grad, copy_out=low),
        OURS_ALL_BF16: ours(narrow),
        FUSED: wide.optimizer(torch.optim.AdamW([wide.weights], fused=True, **SETTINGS)).step,
        LOOP: wide.optimizer(torch.optim.AdamW([wide.weights], foreach=False, **SETTINGS)).step,
        FUSED_ALL_BF16: narrow.optimizer(torch.optim.AdamW([narrow.weights], fused=True, **SETTINGS)).step,
        COPY: lambda: target.copy_(source),
    }
    if importlib.util.find_spec("deepspeed") is not None:
        found[DEEPSPEED] = wide.optimizer(deepspeed_adamw(wide.weights)).step
        found[DEEPSPEED_COPIES] = with_copies(found[DEEPSPEED])
    found[FUSED_COPIES] = with_copies(found[FUSED])
    return found


def ours(held: Memory, *, grad: Tensor | None = None, copy_out: Tensor | None = None) -> Callable[[], object]:
    """Our kernel, on the memory's own gradient or another."""
    from dsx_native.kernels import adam_step

    gradient = held.weights.grad if grad is None else grad
    assert gradient is not None
    tensors = (held.weights.detach(), gradient, *held.moments)
    settings = {**SETTINGS, "decoupled": True, "copy_out": copy_out}
    count = iter(range(1, 1 << 30))
    return lambda: adam_step(*tensors, step=next(count), **settings)


def deepspeed_adamw(weights: torch.nn.Parameter) -> torch.optim.Optimizer:
    """DeepSpeed's, which compiles its kernel when it is first used."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    made: torch.optim.Optimizer = DeepSpeedCPUAdam([weights], adamw_mode=True, **SETTINGS)
    return made


def gradients(n: int) -> Tensor:
    """Plausible ones."""
    return torch.randn(n, generator=torch.Generator().manual_seed(0)).mul_(1e-2)
