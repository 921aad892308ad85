"""Optimizer conformance: the laws on which an engine, a schedule and a checkpoint rely."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dsx.optim.make import ownership_of
from dsx.plugin.kinds import OPTIMIZER
from dsx.registry.registry import Registry
from dsx.testing.optimizer_engine import check_reload, check_training
from dsx.testing.optimizer_pieces import check_factor, check_pieces
from dsx.testing.optimizer_steps import (
    check_absent,
    check_learns,
    check_narrow,
    check_odd,
    check_rates,
    check_resumed,
    check_same,
    check_zero_rate,
)
from dsx.testing.subjects import Subject, subject_of
from dsx.testing.verdict import fail, trying

LAWS: Mapping[str, Callable[[Subject], None]] = {
    "learns": check_learns,
    "same": check_same,
    "zero rate": check_zero_rate,
    "rates": check_rates,
    "absent gradient": check_absent,
    "odd shapes": check_odd,
    "bf16": check_narrow,
    "resumed": check_resumed,
    "pieces": check_pieces,
    "factor": check_factor,
    "training": check_training,
    "reload": check_reload,
}
"""Each law's name, by which it can be exempted, and its check."""


def check_optimizer(
    optimizer: Any,
    *,
    params: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    plugins: Sequence[object | str] = (),
    exempt: Collection[str] = (),
) -> None:
    """Check an optimizer: a registered name, or a class or factory of (param_groups, **params).

    params: as in ``optimizer.params``. registry: where a name is looked up; without it, the installed plugins and
    ``plugins``. Raises AssertionError that names the law. The laws:

    - *learns*: with the rate it is given, steps lower a quadratic loss. *same*: two courses have the same bits.
    - *zero rate*: with ``lr`` 0 and no weight decay, weights stay. *rates*: each group's own ``lr`` is honoured.
    - *absent gradient*: a parameter without gradient keeps weights and state.
    - *odd shapes*, *bf16*: empty and zero-dimensional parameters and bf16 ones train, or are refused with a DsxError.
    - *resumed*: a state dictionary, through pickle and torch.save, goes on bit for bit in a fresh optimizer.
    - *pieces*: updated range by range (``ownership = "element"``) or parameter by parameter, it does the same.
    - *factor*: ``update(factor=...)`` is the update from multiplied gradients, and low-precision weights follow.
    - *training*: an engine trains as plain PyTorch does. *reload*: from an engine's checkpoint it goes on bit for bit.

    exempt: names of laws that do not hold on purpose, such as Rprop's ``zero rate``.
    """
    unknown = sorted(set(exempt) - set(LAWS))
    if unknown:
        raise ValueError(f"exempt has {', '.join(unknown)}: wanted names out of {', '.join(LAWS)}")
    with trying(f"finding the optimizer {optimizer!r}"):
        subject = subject_of(OPTIMIZER, optimizer, params=params, registry=registry, plugins=plugins)
        ownership = ownership_of(subject.factory)
    for name, law in LAWS.items():
        if name in exempt:
            continue
        where = f"optimizer {subject.title} (ownership by {ownership}), law {name!r}"
        try:
            with trying("it"):
                law(subject)
        except AssertionError as error:
            fail_at = f"{where}: {error}"
        else:
            continue
        fail(fail_at)
