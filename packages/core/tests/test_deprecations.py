"""Deprecations: each entry is still due, each class has one, and the warning points at the user's own line."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from packaging.version import Version

import dsx
from dsx.deprecations import DEPRECATIONS, DsxDeprecationWarning, warn_deprecated

CONFIG = {"train_micro_batch_size_per_gpu": 1}


def classes() -> set[type[DsxDeprecationWarning]]:
    return set(DsxDeprecationWarning.__subclasses__())


def test_nothing_outlives_the_release_that_removes_it() -> None:
    overdue = [name for name, entry in DEPRECATIONS.items() if Version(dsx.__version__) >= Version(entry.removed_in)]
    assert not overdue, f"dsx {dsx.__version__} removes {overdue}: take out the entry and the old way"


def test_every_class_has_an_entry_and_is_named_for_its_release() -> None:
    assert {entry.warning for entry in DEPRECATIONS.values()} == classes()
    for kind in classes():
        assert kind.__name__ == f"RemovedIn{kind.release.replace('.', '')}"


@pytest.mark.parametrize("name", DEPRECATIONS)
def test_an_entry_says_what_since_when_and_what_instead(name: str) -> None:
    entry = DEPRECATIONS[name]
    assert Version(entry.since) < Version(entry.removed_in)
    for part in (entry.what, entry.since, entry.removed_in, entry.instead):
        assert part
        assert part in entry.message
    with pytest.warns(entry.warning, match="deprecated since"):
        warn_deprecated(name)


def test_the_old_way_still_works_and_its_own_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSX_PLUGINS_BLOCK", "zero,native")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine, *_ = dsx.initialize(model=torch.nn.Linear(2, 1), config_params=CONFIG)
    with engine:
        assert engine.train_batch_size() == 1
    (warning,) = (item for item in caught if issubclass(item.category, DsxDeprecationWarning))
    assert Path(warning.filename) == Path(__file__)
    assert "config_params=CONFIG" in Path(__file__).read_text().splitlines()[warning.lineno - 1]
    assert "pass the same value as config=" in str(warning.message)
