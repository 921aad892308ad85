"""The batch triple: train = micro × accumulation × data replicas. Arithmetic alone, solved once the mesh is known."""

from __future__ import annotations

from dataclasses import dataclass

from dsx.config.auto import AutoType
from dsx.errors import PlanError
from dsx.plugin.types import Resolved

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"

Given = int | AutoType | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples per update (train), per forward (micro), forwards per update and rank (accumulation), data replicas."""

    train: int
    micro: int
    accumulation: int
    replicas: int


def solve_batch(
    train: Given, micro: Given, accumulation: Given, *, replicas: int
) -> tuple[Batch, tuple[Resolved, ...]]:
    """The whole triple from any part of it, and one `Resolved` for each key that stood at ``"auto"``.

    What is missing follows from the rest; accumulation, then micro, are 1 where the rest leaves them open.
    Raises PlanError with all numbers where they do not multiply, or where neither batch size is given.
    """
    asked = {TRAIN: train, MICRO: micro, STEPS: accumulation}
    autos = [key for key, value in asked.items() if isinstance(value, AutoType)]
    known = {key: value for key, value in asked.items() if isinstance(value, int)}
    if TRAIN not in known and MICRO not in known and TRAIN not in autos and MICRO not in autos:
        raise PlanError(
            f"no batch size is given: found {_shown(known) or 'none of the batch keys'}, wanted {TRAIN} or {MICRO}\n"
            f'    what to do: set {MICRO} to what one rank can hold, or to "auto" for 1'
        )
    batch, reasons = _complete(known, replicas)
    values = {TRAIN: batch.train, MICRO: batch.micro, STEPS: batch.accumulation}
    return batch, tuple(Resolved(key, values[key], reasons[key]) for key in autos)


def _complete(known: dict[str, int], replicas: int) -> tuple[Batch, dict[str, str]]:
    reasons = {TRAIN: "micro × accumulation × data replicas"}
    train, micro, steps = known.get(TRAIN), known.get(MICRO), known.get(STEPS)
    if train is None:
        reasons[MICRO] = "the smallest batch, as nothing else says how much one rank can hold"
        reasons[STEPS] = "an update after every micro-batch, as nothing else asks for more"
        micro, steps = micro or 1, steps or 1
        return Batch(micro * steps * replicas, micro, steps, replicas), reasons
    if micro is None:
        steps = steps or 1
        reasons[STEPS] = "an update after every micro-batch, as nothing else asks for more"
        reasons[MICRO] = f"{TRAIN} / (accumulation × data replicas)"
        micro = _divided(train, steps * replicas, known, replicas)
    elif steps is None:
        reasons[STEPS] = f"{TRAIN} / (micro × data replicas)"
        steps = _divided(train, micro * replicas, known, replicas)
    elif train != micro * steps * replicas:
        raise _indivisible(train, micro * steps * replicas, known, replicas)
    return Batch(train, micro, steps, replicas), reasons


def _divided(train: int, by: int, known: dict[str, int], replicas: int) -> int:
    if train % by:
        raise _indivisible(train, by, known, replicas)
    return train // by


def _indivisible(train: int, product: int, known: dict[str, int], replicas: int) -> PlanError:
    below = train // product * product
    nearest = [str(size) for size in (below, below + product) if size > 0]
    if len(known) == 3:
        wanted, nearest = f"{TRAIN} = {product}", [str(product)]
    else:
        wanted = f"a multiple of {product}"
    return PlanError(
        f"batch sizes do not multiply: found {_shown(known)} with {replicas} data replicas, wanted {wanted}\n"
        f"    train = micro × accumulation × data replicas: {train} = {known.get(MICRO, '?')} × "
        f"{known.get(STEPS, '?')} × {replicas}\n"
        f"    nearest legal: {TRAIN}={' or '.join(nearest)}"
    )


def _shown(known: dict[str, int]) -> str:
    return ", ".join(f"{key}={value}" for key, value in known.items())
