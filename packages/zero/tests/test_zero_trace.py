"""The order of use: what is foretold is what came last time, and a pass that leaves it foretells nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsx_zero.trace import Trace

ORDERS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def run(trace: Trace, order: list[int]) -> None:
    trace.restart()
    for index in order:
        trace.note(index)
        trace.leave()


@given(ORDERS)
def test_a_repeated_pass_is_foretold_use_by_use(order: list[int]) -> None:
    trace = Trace([10, 20, 30, 40, 50, 60])
    run(trace, order)
    trace.restart()
    for position, index in enumerate(order):
        assert list(trace.upcoming()) == order[position:]
        trace.note(index)
        trace.leave()
        rest = order[position + 1 :]
        for other in range(6):
            wanted = None
            if other in rest:
                wanted = sum(trace.sizes[between] for between in rest[: rest.index(other)])
            assert trace.distance(other) == wanted
    assert not trace.astray


@given(ORDERS, ORDERS)
def test_a_pass_that_leaves_the_order_foretells_nothing_and_is_learnt(first: list[int], second: list[int]) -> None:
    trace = Trace([1] * 6)
    run(trace, first)
    run(trace, second)
    followed = second == first[: len(second)]
    assert trace.astray == (not followed)
    assert list(trace.upcoming()) == (first[len(second) :] if followed else [])
    trace.restart()
    assert list(trace.upcoming()) == second


def test_modules_that_share_a_bucket_use_it_once_until_they_leave_it() -> None:
    trace = Trace([1, 1])
    trace.restart()
    for index in (0, 0, 0, 1, 0):
        trace.note(index)
    trace.leave()
    trace.note(0)
    trace.restart()
    assert list(trace.upcoming()) == [0, 1, 0, 0]


def test_a_pass_without_uses_forgets_nothing() -> None:
    trace = Trace([1, 1])
    run(trace, [0, 1])
    trace.restart()
    trace.restart()
    assert list(trace.upcoming()) == [0, 1]
    assert Trace([]).distance(0) is None
