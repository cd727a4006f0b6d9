"""How long workers stand still in collectives, and what late ones cost by that."""

import pytest

from app.diagnosis.case import Case
from app.diagnosis.evidence.late_workers import late_workers, wait_cost
from app.diagnosis.evidence.standstill import standstill
from tests.diagnosis.jobs import case_of
from tests.engine.arrivals.ddp_windows import queued_step
from tests.window_factory import Row, in_row, replicas, window

NUM_STEPS = 4


def mean_s(case: Case, dp_rank: int) -> tuple[float, float]:
    """Mean seconds a step that a rank stood still, and may have stood still beyond that."""
    stood = standstill(case, (dp_rank, 0))
    assert stood is not None
    return float(stood.sure_s.mean()), float(stood.maybe_s.mean())


def test_transfers_that_come_late_with_the_computation_before_them_are_its_cost():
    # Buckets of rank 0 fill 12.5 to 41 s, of which it computes until 20 s: 21 s. Rank 1 computes
    # until 40 s and stands still for the last of its reductions only. Healthy, the step of 42 s
    # takes 22 s.
    rows = [row for step in range(NUM_STEPS) for row in queued_step([10.0, 20.0], step)]
    case = case_of(window(rows, dp_size=2))
    assert mean_s(case, 0) == pytest.approx((21.0, 0.0))
    assert mean_s(case, 1) == pytest.approx((1.0, 0.0))
    waits = wait_cost(case, late_workers(case))
    assert waits is not None
    assert (waits.low, waits.high) == pytest.approx((20.0 / 42.0, 20.0 / 42.0))


def sharded_step(slow: float) -> list[Row]:
    """A gather beside the forward of two ranks, of which rank 1 computes `slow` times as long.

    Rank r comes to the gather after half of its forward; rank 0 needs it then, and stands still
    until it has ended, 1 s after rank 1 came.
    """
    came_s, done_s = 5.0 * slow, 5.0 * slow + 1.0
    rows = [
        Row("forward-compute", 0.0, done_s + 5.0),
        Row("params-all-gather", 5.0, done_s - 5.0),
        Row("wait", 5.0, done_s - 5.0),
        Row("forward-compute", 0.0, done_s + 5.0 * slow, dp_rank=1),
        Row("params-all-gather", came_s, 1.0, dp_rank=1),
        Row("wait", came_s, 1.0, dp_rank=1),
    ]
    end_s = done_s + 5.0 * slow
    for dp_rank, start_s in enumerate((done_s + 5.0, end_s)):
        rows += [
            Row("grads-reduce-scatter", start_s, end_s + 1.0 - start_s, dp_rank=dp_rank),
            Row("optimizer", end_s + 1.0, 1.0, dp_rank=dp_rank),
        ]
    return rows


def test_recorded_waits_inside_computations_are_standstill():
    rows = [row.on(step=step) for step in range(NUM_STEPS) for row in sharded_step(2.0)]
    case = case_of(window(rows, dp_size=2))
    # Rank 0 waits 5 s more inside its forward and 5 s more after it than rank 1, in 23 s.
    assert mean_s(case, 0) == pytest.approx((12.0, 0.0))
    assert mean_s(case, 1) == pytest.approx((2.0, 0.0))
    waits = wait_cost(case, late_workers(case))
    assert waits is not None
    assert (waits.low, waits.high) == pytest.approx((10.0 / 23.0, 10.0 / 23.0))


def test_waits_that_may_lie_inside_a_computation_are_said_as_such():
    # One bucket, beside a backward that ends long after it: nothing tells whether it ran on.
    rows = replicas(in_row(("forward-compute", 10.0), ("backward-compute", 20.0)), 2)
    for dp_rank, start_s in enumerate((15.0, 19.0)):
        rows += [
            Row("grads-reduce-scatter", start_s, 20.0 - start_s, dp_rank=dp_rank),
            Row("optimizer", 30.0, 1.0, dp_rank=dp_rank),
        ]
    case = case_of(
        window([row.on(step=step) for step in range(NUM_STEPS) for row in rows], dp_size=2)
    )
    assert mean_s(case, 0) == pytest.approx((0.0, 4.0))
    assert mean_s(case, 1) == pytest.approx((0.0, 0.0))
