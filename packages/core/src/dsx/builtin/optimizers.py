"""Optimizers by name: ours, and torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsx.plugin.kinds import OPTIMIZER
from dsx.plugin.types import Component

_OURS = {
    "Adam": ("dsx.optim.adam:Adam", "Adam with AdamW's weight decay, unless adam_w_mode is false"),
    "AdamW": ("dsx.optim.adam:AdamW", "Adam with decoupled weight decay"),
    "SGD": ("dsx.optim.sgd:SGD", "gradient descent with momentum"),
    "Adagrad": ("dsx.optim.adagrad:Adagrad", "rates from the sum of squared gradients"),
    "Lion": ("dsx.optim.lion:Lion", "steps by the sign of the momentum"),
    "Lamb": ("dsx.optim.lamb:Lamb", "Adam's step, scaled by the norm of each parameter"),
    "Muon": ("dsx.optim.muon:Muon", "orthogonalised momentum for hidden matrices, AdamW for the rest"),
}

_TORCH = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)


def components() -> Iterator[Component[Any]]:
    """Ours by their names; torch's with the prefix ``torch.``, and without it where ours do not have the name."""
    for name, (load, summary) in _OURS.items():
        yield Component(OPTIMIZER, name, load=load, summary=summary)
    for name in _TORCH:
        prefixed, load = f"torch.{name}", f"torch.optim:{name}"
        summary = f"torch.optim.{name}"
        if name in _OURS:
            yield Component(OPTIMIZER, prefixed, load=load, summary=summary)
        else:
            yield Component(OPTIMIZER, name, load=load, aliases=(prefixed,), summary=summary)
