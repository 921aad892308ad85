"""What tests of dsx and of its plugins need. Importing this imports nothing else; each name is loaded when it is used.

``check_*`` raise AssertionError, naming what broke and in which case, also under ``python -O``. The fixtures and the
leak guards are in ``dsx.testing.pytest_plugin``, which pytest loads by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsx.plugin.types import Form
    from dsx.testing.awkward import Awkward, awkward_batch
    from dsx.testing.codecs import check_codec
    from dsx.testing.distributions import write_distribution
    from dsx.testing.drivers import check_driver
    from dsx.testing.fake import FakeMesh, fake_worlds
    from dsx.testing.faults import Fault, fails_at, kills_at
    from dsx.testing.kernels import check_variants
    from dsx.testing.leaks import Traces, assert_freed, freed
    from dsx.testing.optimizers import check_optimizer
    from dsx.testing.parity import Course, plain, steered
    from dsx.testing.partitioners import check_partitioner
    from dsx.testing.ranks import run_ranks
    from dsx.testing.schedules import check_schedule
    from dsx.testing.stores import check_store

__all__ = [
    "Awkward",
    "Course",
    "FakeMesh",
    "Fault",
    "Form",
    "Traces",
    "assert_freed",
    "awkward_batch",
    "check_codec",
    "check_driver",
    "check_optimizer",
    "check_partitioner",
    "check_schedule",
    "check_store",
    "check_variants",
    "fails_at",
    "fake_worlds",
    "freed",
    "kills_at",
    "plain",
    "run_ranks",
    "steered",
    "write_distribution",
]

_WHERE = {
    "Awkward": "dsx.testing.awkward",
    "Course": "dsx.testing.parity",
    "FakeMesh": "dsx.testing.fake",
    "Fault": "dsx.testing.faults",
    "Form": "dsx.plugin.types",
    "Traces": "dsx.testing.leaks",
    "assert_freed": "dsx.testing.leaks",
    "awkward_batch": "dsx.testing.awkward",
    "check_codec": "dsx.testing.codecs",
    "check_driver": "dsx.testing.drivers",
    "check_optimizer": "dsx.testing.optimizers",
    "check_partitioner": "dsx.testing.partitioners",
    "check_schedule": "dsx.testing.schedules",
    "check_store": "dsx.testing.stores",
    "check_variants": "dsx.testing.kernels",
    "fails_at": "dsx.testing.faults",
    "fake_worlds": "dsx.testing.fake",
    "freed": "dsx.testing.leaks",
    "kills_at": "dsx.testing.faults",
    "plain": "dsx.testing.parity",
    "run_ranks": "dsx.testing.ranks",
    "steered": "dsx.testing.parity",
    "write_distribution": "dsx.testing.distributions",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'dsx.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
