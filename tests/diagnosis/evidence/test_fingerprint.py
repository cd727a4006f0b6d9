import pytest

from app.diagnosis.evidence.fingerprint import coverage, fingerprint
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage
from tests.diagnosis.jobs import case_of, made, window_of
from tests.synth.faulty_jobs import compute_only_costs
from tests.window_factory import in_row, replicas, window


def shares_of(job):
    seen = fingerprint(case_of(window_of(job)))
    return seen.variance.between_stages, seen.variance.between_workers, seen.variance.within_workers


def test_a_long_stage_is_variance_between_stages():
    assert shares_of(made(LongLastStage())) == pytest.approx((0.99, 0.0, 0.01), abs=0.02)


def test_uneven_sequences_are_variance_within_a_worker():
    assert shares_of(made(SequenceImbalance()))[2] > 0.9


def test_equal_forwards_have_no_variance_shares():
    job = made(costs=compute_only_costs(1.0, 2.0))
    assert shares_of(job) == (None, None, None)


def test_variance_shares_need_micro_batches_on_every_stage():
    """A record whose rows were mixed up may be like that, and everything else of it is told."""
    rows = [
        row.on(stage=stage, mb_id=5 + stage)
        for stage in range(2)
        for row in in_row(("forward-compute", 1), ("backward-compute", 2))
    ]
    seen = fingerprint(case_of(window(rows, pp_size=2)))
    assert (
        seen.variance.between_stages,
        seen.variance.between_workers,
        seen.variance.within_workers,
    ) == (None, None, None)


def test_shares_of_op_types_are_those_of_the_loss():
    # Replica 1's forward takes 4 s in place of 2, which is all that is lost.
    rows = replicas(in_row(("forward-compute", 2), ("backward-compute", 4), ("optimizer", 1)), 2)
    slow = [
        row.on(duration_s=4.0) if row.optype == "forward-compute" and row.dp_rank
        else row.on(start_s=row.start_s + 2 * row.dp_rank) for row in rows
    ]  # fmt: skip
    seen = fingerprint(case_of(window(slow, dp_size=2)))
    assert seen.optype_share == pytest.approx(
        {"forward-compute": 1.0, "backward-compute": 0.0, "optimizer": 0.0}
    )
    assert seen.stage_share == pytest.approx((1.0,))
    assert seen.variance.between_workers == pytest.approx(1.0)


def test_coverage_counts_overlapping_operations_once_in_any_order():
    """Of 10 s the worker runs operations for 4 + 1 + 2 s; some overlap, or lie within another."""
    rows = [
        each.on(start_s=start_s, duration_s=duration_s)
        for each, start_s, duration_s in zip(
            in_row(*[("forward-compute", 1)] * 4, ("optimizer", 1)),
            (0.0, 1.0, 3.0, 5.0, 8.0),
            (3.0, 1.0, 1.0, 1.0, 2.0),
            strict=True,
        )
    ]
    assert coverage(case_of(window(rows))) == pytest.approx(0.7)
    # The order of the rows in the first step is not that of the second one.
    turned = [each.on(step=1, start_s=8.0 - each.start_s) for each in rows[:-1]]
    later = [*turned, rows[-1].on(step=1, start_s=9.0, duration_s=1.0)]
    # There 1 + 1 + 4 of 8 s.
    assert coverage(case_of(window([*rows, *later]))) == pytest.approx(13 / 18)
