from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from app.advice.change import ChangedDurations
from app.advice.sequences.microbatch_work import MicrobatchWork, SentLengths, microbatch_work
from app.engine.replays import prepare
from app.engine.what_if import Replayer
from app.synth.costs import OperationCosts
from app.synth.faults.sequence_imbalance import DocumentLengths, SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import Interleaved, OneFOneB
from app.trace.job import Parallelism
from app.trace.window import Trace

NUM_STEPS = 8
SENT = SequenceImbalance(attention_share=0.4, is_sent=True)


def made(*faults, dp=3, pp=2, vpp=1, noise=0.01):
    return SimulatedJob(
        Parallelism(dp, pp, 8, vpp),
        6,
        costs=OperationCosts(noise=noise),
        faults=faults,
        schedule=Interleaved() if vpp > 1 else OneFOneB(),
    )


def replay_of(job):
    return prepare(job.record(range(NUM_STEPS)).window())


def work_of(group: Replayer, slow_workers: Collection[tuple[int, int]] = ()) -> MicrobatchWork:
    """The work of the micro-batches, which all are recorded."""
    found = microbatch_work(group, slow_workers)
    assert found is not None
    return found


def lengths_of(trace: Trace, group: Replayer, work: MicrobatchWork) -> SentLengths:
    """The sent lengths, which are complete."""
    found = work.sent_lengths(trace, group)
    assert found is not None
    return found


def true_squares(job):
    """[dp, micro-batches, steps], squared lengths as the fault draws them."""
    drawn = [block.drawn for block in job.blocks(range(NUM_STEPS))]
    return np.concatenate([each.seq_len_sq for each in drawn], axis=1).transpose(2, 0, 1)


@pytest.mark.parametrize(("dp", "pp", "vpp"), [(3, 2, 1), (4, 1, 1), (2, 2, 2)])
def test_work_of_a_microbatch_is_that_of_its_documents(dp, pp, vpp):
    job = made(SENT, dp=dp, pp=pp, vpp=vpp)
    (group,) = replay_of(job).groups
    work = work_of(group)
    assert work.microbatches.tolist() == list(range(6))
    true = DocumentLengths(full=32_768).work(true_squares(job), 0.4)
    np.testing.assert_allclose(work.factor, true / true.mean(), rtol=0.05)
    assert work.factor.mean() == pytest.approx(1.0)


def test_every_computation_of_a_microbatch_is_rescaled_and_no_other():
    (group,) = replay_of(made(SENT, vpp=2)).groups
    work, durations = work_of(group), ChangedDurations(group)
    work.rescale(durations, 2 * work.factor)
    every = np.arange(group.graph.num_ops)
    ratio = durations.of(every) / group.durations.recorded_s[every]
    names = [group.template.name(op) for op in every]
    is_pass = np.array([each in ("forward-compute", "backward-compute") for each in names])
    np.testing.assert_allclose(ratio[is_pass], 2.0)
    np.testing.assert_allclose(ratio[~is_pass], 1.0)


def test_sent_lengths_are_at_the_places_of_their_microbatches():
    job = made(SENT)
    replay = replay_of(job)
    (group,) = replay.groups
    sent = lengths_of(replay.window.trace, group, work_of(group))
    np.testing.assert_array_equal(sent.seq_len_sq, true_squares(job))
    assert sent.tokens is not None
    assert (sent.tokens == 32_768).all()


def test_lengths_that_lack_for_one_microbatch_are_not_used():
    replay = replay_of(made(SENT))
    (group,) = replay.groups
    trace = replay.window.trace
    squares = trace.seq_len_sq.copy()
    is_one = (trace.step == 3) & (trace.dp_rank == 1) & (trace.mb_id == 2)
    squares[is_one] = -1
    work = work_of(group)
    assert work.sent_lengths(replace(trace, seq_len_sq=squares), group) is None
    assert work.sent_lengths(replace(trace, seq_len_sq=None), group) is None
    without_tokens = lengths_of(replace(trace, tokens=None), group, work)
    assert without_tokens.tokens is None


def test_costs_are_fitted_to_the_jobs_own_microbatches():
    replay = replay_of(made(SENT, dp=8))
    (group,) = replay.groups
    work = work_of(group)
    costs = work.fitted_costs(lengths_of(replay.window.trace, group, work))
    assert costs is not None
    # Forward and backward take 60 ms in the mean, and all but attention's 40 % does not vary.
    assert costs.fixed_s == pytest.approx(0.06 * 0.6, rel=0.03)
    assert costs.per_token_s == 0.0
    assert costs.r_squared > 0.99


def test_speed_of_a_slow_rank_is_not_its_work():
    job = made(SENT, SlowWorker(1, 0, 1.5), pp=1)
    (group,) = replay_of(job).groups
    true = DocumentLengths(full=32_768).work(true_squares(job), 0.4)
    own = true / true.mean(axis=(1, 2), keepdims=True)
    known = work_of(group, slow_workers=[(1, 0)]).factor
    np.testing.assert_allclose(known[1] / known[1].mean(), own[1], rtol=0.05)
    assert known[1].mean() == pytest.approx(known.mean(), rel=0.1)
    unknown = work_of(group).factor
    assert unknown[1].mean() / unknown[[0, 2]].mean() > 1.3
