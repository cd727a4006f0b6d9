import pytest

from app.diagnosis.fingerprint import fingerprint
from app.synth.costs import Costs
from app.synth.faults.long_last_stage import LongLastStage
from app.synth.faults.sequence_imbalance import SequenceImbalance
from tests.diagnosis.jobs import case_of, made, window_of
from tests.factories import in_row, replicas, window


def shares_of(job):
    seen = fingerprint(case_of(window_of(job)))
    return seen.between_stages, seen.between_workers, seen.within_workers


def test_a_long_stage_is_variance_between_stages():
    assert shares_of(made(LongLastStage())) == pytest.approx((0.99, 0.0, 0.01), abs=0.02)


def test_uneven_sequences_are_variance_within_a_worker():
    assert shares_of(made(SequenceImbalance()))[2] > 0.9


def test_shares_add_up_to_all_variance():
    assert sum(shares_of(made(SequenceImbalance(), LongLastStage()))) == pytest.approx(1.0)


def test_forwards_that_are_all_alike_have_none():
    job = made(costs=Costs.of_compute_only(1.0, 2.0))
    assert shares_of(job) == (None, None, None)


def test_without_a_micro_batch_that_every_stage_has_no_shares_are_known():
    """A record whose rows were mixed up may be like that, and everything else of it is told."""
    rows = [
        row.on(stage=stage, mb_id=5 + stage)
        for stage in range(2)
        for row in in_row(("forward-compute", 1), ("backward-compute", 2))
    ]
    seen = fingerprint(case_of(window(rows, pp_size=2)))
    assert (seen.between_stages, seen.between_workers, seen.within_workers) == (None, None, None)


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
    assert seen.between_workers == pytest.approx(1.0)
