from dataclasses import dataclass, replace

import numpy as np
import pytest

from app.advice.balance_sequences import _Reassignment, balance_sequences
from app.advice.change import ChangedDurations
from app.advice.fix import Fix
from app.advice.replace_worker import replace_worker
from app.engine.replays import prepare
from app.result.finding import Culprit
from app.synth.faults.fault import affected_steps
from app.synth.faults.sequence_imbalance import SequenceImbalance, _set_lengths
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import Interleaved, OneFOneB
from app.trace.job import Parallelism
from benchmarks.advice.lpt_sequences import LptSequences
from tests.advice.cases import NUM_STEPS, case_of, fix_of, refusal_of

JOB = SimulatedJob(Parallelism(4, 4, 8), 8, seed=3)
ATTENTION_SHARE, FULL_SHARE = 0.4, 0.03


def uneven(job: SimulatedJob, *, is_sent: bool = False) -> SimulatedJob:
    fault = SequenceImbalance(
        attention_share=ATTENTION_SHARE, full_share=FULL_SHARE, is_sent=is_sent
    )
    return replace(job, faults=(fault,))


def achieved_s(job, *others, seed=50):
    """Mean step in seconds of the same documents dealt out, with other noise."""
    dealt = LptSequences(
        attention_share=ATTENTION_SHARE, full_share=FULL_SHARE, documents_seed=job.seed
    )
    window = replace(job, faults=(dealt, *others), seed=seed).record(range(NUM_STEPS)).window()
    return float(prepare(window).simulated_s.mean())


def reassignment_of(fix: Fix) -> _Reassignment:
    """The new dp ranks that the fix gives the micro-batches."""
    assert isinstance(fix.change.reassign, _Reassignment)
    return fix.change.reassign


@pytest.fixture(scope="module")
def case():
    return case_of(uneven(JOB, is_sent=True))


@pytest.mark.parametrize(("dp", "pp", "vpp"), [(4, 4, 1), (8, 1, 1), (2, 8, 1), (4, 2, 2)])
@pytest.mark.parametrize("is_sent", [False, True])
def test_prediction_is_what_the_same_sequences_take_dealt_out(dp, pp, vpp, is_sent):
    schedule = Interleaved() if vpp > 1 else OneFOneB()
    job = SimulatedJob(Parallelism(dp, pp, 8, vpp), 8, seed=3, schedule=schedule)
    case = case_of(uneven(job, is_sent=is_sent))
    fix = fix_of(balance_sequences(case))
    assert 100 * abs(fix.step_s - achieved_s(job)) / case.step_s < 4
    assert fix.step_range_s[0] <= achieved_s(job) <= fix.step_range_s[1]
    assert fix.step_range_s[0] <= fix.step_s <= fix.step_range_s[1]
    assert fix.speed_up > 1.01


def test_work_of_a_step_is_conserved(case):
    fix = fix_of(balance_sequences(case))
    (group,) = case.replay.groups
    durations = ChangedDurations(group)
    reassignment_of(fix)(durations)
    rows = group.template.of_stage[0]["forward-compute"]
    before, after = (
        each.reshape(len(rows), 4, NUM_STEPS).sum(axis=(0, 1))
        for each in (group.durations.recorded_s[rows], durations.of(rows))
    )
    np.testing.assert_allclose(after, before, rtol=0.01)
    loads = durations.of(rows).reshape(len(rows), 4, NUM_STEPS).sum(axis=0)
    assert (loads.max(axis=0) / loads.mean(axis=0)).mean() < 1.06


@dataclass(frozen=True, slots=True)
class LongOnOneRank(SequenceImbalance):
    """Every second micro-batch of dp rank 1 has sequences so long that it takes thrice as long."""

    def change(self, drawn, world, lasts, rng_of):
        shape = world.num_microbatches, world.parallelism.dp_size
        for at, step in affected_steps(drawn, lasts):
            squares = np.full(shape, 1_000_000)
            squares[rng_of(step).permutation(shape[0])[: shape[0] // 2], 1] *= 5
            drawn.forward_s[..., at, :] *= 0.5 + squares / 2e6
            drawn.backward_s[..., at, :] *= 0.5 + squares / 2e6
            _set_lengths(drawn, at, np.full(shape, 4_096), squares)


def test_a_rank_with_all_the_long_sequences_gives_them_away():
    job = SimulatedJob(Parallelism(4, 1, 8), 8, faults=(LongOnOneRank(),))
    case = case_of(job)
    assert case.findings("sequence-imbalance")[0].culprits == (Culprit(dp_rank=1),)
    fix = fix_of(balance_sequences(case))
    # 16 units of 60 ms on rank 1, 8 on the others; then 10 on each. The rest of a step stays.
    assert case.step_s - fix.step_s == pytest.approx(6 * 0.06, rel=0.05)


SLOW = SlowWorker(2, 1, 1.3)


@pytest.fixture(scope="module")
def slow_case():
    found = case_of(replace(JOB, faults=(*uneven(JOB).faults, SLOW)))
    causes = {finding.cause for finding in found.result.findings or ()}
    assert causes == {"slow-worker", "sequence-imbalance"}
    return found


def test_a_slow_worker_keeps_its_speed_and_gives_away_nothing_for_it(slow_case):
    fix = fix_of(balance_sequences(slow_case))
    assert 100 * abs(fix.step_s - achieved_s(JOB, SLOW)) / slow_case.step_s < 2.5


def test_a_replaced_worker_takes_the_work_that_is_moved_to_it(slow_case):
    changes = [fix_of(each(slow_case)).change for each in (balance_sequences, replace_worker)]
    assert 100 * abs(slow_case.step_s_with(*changes) - achieved_s(JOB)) / slow_case.step_s < 2.5


def test_lengths_that_were_not_sent_are_asked_for():
    job = SimulatedJob(Parallelism(4, 1, 8), 8, seed=3)
    fix = fix_of(balance_sequences(case_of(uneven(job))))
    assert "seq_len_sq=" in fix.needs[0].text
    assert not any("max-seqlen" in each.text for each in fix.paste)
    assert "[sum(s * s for s in sequences) for sequences in lengths]" in fix.paste[0].text


def test_fix_is_not_offered_where_it_does_not_apply():
    assert "not found" in refusal_of(balance_sequences(case_of(JOB))).reason
    one = uneven(SimulatedJob(Parallelism(1, 4, 8), 8, seed=3))
    assert "one dp rank" in refusal_of(balance_sequences(case_of(one))).reason
    single = uneven(SimulatedJob(Parallelism(8, 1, 8), 1, seed=3))
    found = refusal_of(balance_sequences(case_of(single)))
    assert "one micro-batch" in found.reason or "not found" in found.reason
