"""What each installed plugin is there for works, and what needs one that is gone says so.

``python tests/together/what_is_left.py [--gone NAME…]`` looks at the distributions that are installed here; those gone
must not be. It is no test of pytest, because it is run again after each ``pip uninstall``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import dsx
from dsx.errors import DsxError
from dsx.plugin.manager import plugin_manager
from dsx.registry.registry import Registry


def train(*, optimizer: str = "AdamW", stage: int = 0) -> None:
    """Three updates of a small model; the loss falls."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "log_level": "warning",
        "optimizer": {"type": optimizer, "params": {"lr": 1e-2}},
        **({"zero_optimization": {"stage": stage}} if stage else {}),
    }
    x, losses = torch.randn(4, 8), []
    with dsx.initialize(model=model, config=config)[0] as engine:
        for _ in range(3):
            loss = engine(x).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.detach()))
    assert math.isfinite(losses[-1]), losses
    assert losses[-1] < losses[0], losses


def refused(function: Callable[[], object], *wanted: str) -> None:
    """The function raises a DsxError that says all this."""
    with pytest.raises(DsxError) as caught:
        function()
    missing = [text for text in wanted if text not in str(caught.value)]
    assert not missing, f"{missing} is not said in:\n{caught.value}"
    print(f"  refused, as it must be: {str(caught.value).splitlines()[0]}")


def zero(*, here: bool) -> None:
    """The stages, or where to get them."""
    if not here:
        refused(lambda: train(stage=2), "zero_optimization", "pip install dsx-zero")
        return
    for stage in (1, 2, 3):
        train(stage=stage)


def native(*, here: bool) -> None:
    """The fast kernel is chosen; without it another is, and asking for it says where to get it."""
    kernel = Registry(plugin_manager()).kernel("adam_step", like=torch.ones(1))
    assert kernel.__module__.startswith("dsx_native") is here, kernel
    if not here:
        refused(
            lambda: Registry(plugin_manager(), kernels="adam_step=native").kernel("adam_step"),
            "pip install dsx-native",
        )


def stranger(name: str, *, here: bool) -> None:
    """A package that the core has never heard of: its optimizer trains, or nobody offers it."""
    optimizer = name.replace("-", "_")
    if here:
        train(optimizer=optimizer)
        if "dsx-zero" in found():
            train(optimizer=optimizer, stage=2)
    else:
        refused(lambda: train(optimizer=optimizer), optimizer, "install")


OURS: Mapping[str, Callable[..., None]] = {"dsx-zero": zero, "dsx-native": native}


def found() -> set[str]:
    """The distributions that offer plugins here, but the core."""
    points = importlib.metadata.entry_points(group="dsx")
    return {point.dist.name for point in points if point.dist is not None} - {"dsx-core"}


def main() -> None:
    """Try each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gone", nargs="*", default=[], metavar="NAME")
    gone = parser.parse_args().gone
    here = found()
    assert not here.intersection(gone), f"{here.intersection(gone)} must be gone"
    train()
    for name in sorted({*here, *gone}):
        print(f"{name}: {'here' if name in here else 'gone'}")
        if name in OURS:
            OURS[name](here=name in here)
        else:
            stranger(name, here=name in here)
    shown = subprocess.run(
        [Path(sys.executable).with_name("dsx"), "plugins"], check=True, capture_output=True, text=True
    )
    assert not shown.stderr, shown.stderr


if __name__ == "__main__":
    main()
