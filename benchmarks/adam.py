"""One Adam update of a flat tensor far larger than any cache: ours, torch's, DeepSpeed's, and a plain copy."""

from __future__ import annotations

import importlib.util
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.table import Row, spread

RATE, BETAS, EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
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
    contestants = {**ours(n), **torchs(n), **deepspeeds(n), COPY: copy(n)}
    before = torch.get_num_threads()
    found: list[Row] = []
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        torch.set_num_threads(threads)
        times = alternate(contestants, n=n, rounds=5 if short else 15, alone=threads == 1)
        where = "1 thread" if threads == 1 else f"{threads} threads"
        found += [result(contest, times, where) for contest in CONTESTS]
        found += [share(name, times, where) for name in BYTES if name != COPY]
    torch.set_num_threads(before)
    return found


def alternate(contestants: Mapping[str, Callable[[], object]], *, n: int, rounds: int, alone: bool) -> Times:
    """Time everyone once a round, in an order drawn anew: who goes first leaves its dirty cache lines to the next."""
    clock = time.process_time if alone else time.perf_counter
    draw = random.Random(0)
    times = Times({name: [] for name in contestants})
    for number in range(rounds + 1):
        order = draw.sample(list(contestants), len(contestants))
        for name in order:
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


def ours(n: int) -> dict[str, Callable[[], object]]:
    """Our kernel over each mixture of dtypes."""
    from dsx_native.kernels import adam_step

    def updates(
        shard: torch.dtype, grad: torch.dtype, states: torch.dtype, copied: torch.dtype | None
    ) -> Callable[[], object]:
        weights, gradient = torch.zeros(n, dtype=shard), gradients(n, grad)
        m, v = torch.zeros(n, dtype=states), torch.zeros(n, dtype=states)
        low = None if copied is None else torch.zeros(n, dtype=copied)
        count = iter(range(1, 1 << 30))

        def update() -> None:
            adam_step(
                *(weights, gradient, m, v),
                step=next(count),
                lr=RATE,
                betas=BETAS,
                eps=EPS,
                weight_decay=DECAY,
                decoupled=True,
                copy_out=low,
            )

        return update

    return {
        OURS: updates(FP32, FP32, FP32, None),
        OURS_BF16: updates(FP32, FP32, BF16, None),
        OURS_COPIES: updates(FP32, BF16, FP32, BF16),
        OURS_ALL_BF16: updates(BF16, BF16, BF16, None),
    }


def torchs(n: int) -> dict[str, Callable[[], object]]:
    """torch's AdamW, fused and as a loop of tensor operations."""

    def adamw(weights: Sequence[torch.nn.Parameter], *, fused: bool) -> torch.optim.Optimizer:
        options = {"fused": True} if fused else {"foreach": False}
        return torch.optim.AdamW(weights, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, **options)

    return {
        FUSED: adamw([parameter(n, FP32)], fused=True).step,
        LOOP: adamw([parameter(n, FP32)], fused=False).step,
        FUSED_COPIES: with_copies(n, lambda weights: adamw(weights, fused=True)),
        FUSED_ALL_BF16: adamw([parameter(n, BF16)], fused=True).step,
    }


def deepspeeds(n: int) -> dict[str, Callable[[], object]]:
    """DeepSpeed's kernel, which it compiles when it is first used; nobody where DeepSpeed is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        return {}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    def adamw(weights: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = DeepSpeedCPUAdam(
            weights, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, adamw_mode=True
        )
        return made

    return {DEEPSPEED: adamw([parameter(n, FP32)]).step, DEEPSPEED_COPIES: with_copies(n, adamw)}


def with_copies(n: int, make: Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]) -> Callable[[], object]:
    """An fp32 optimizer between bf16 gradients and bf16 weights: what a copy-out saves."""
    master, low, low_grad = parameter(n, FP32), torch.zeros(n, dtype=BF16), gradients(n, BF16)
    optimizer = make([master])

    def update() -> None:
        assert master.grad is not None
        master.grad.copy_(low_grad)
        optimizer.step()
        low.copy_(master.detach())

    return update


def copy(n: int) -> Callable[[], object]:
    """One fp32 tensor into another."""
    source, target = gradients(n, FP32), torch.zeros(n)
    return lambda: target.copy_(source)


def parameter(n: int, dtype: torch.dtype) -> torch.nn.Parameter:
    """Weights with a gradient."""
    made = torch.nn.Parameter(torch.zeros(n, dtype=dtype))
    made.grad = gradients(n, dtype)
    return made


def gradients(n: int, dtype: torch.dtype) -> Tensor:
    """Plausible ones."""
    return torch.randn(n, generator=torch.Generator().manual_seed(0)).mul_(1e-2).to(dtype)
