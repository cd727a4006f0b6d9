"""The sequences of a job with uneven ones, dealt out longest first."""

from dataclasses import replace

import numpy as np

from app.synth.faults.sequence_imbalance import SequenceImbalance
from benchmarks.advice.lpt_sequences import LptSequences
from tests.synth.faulty_jobs import drawn, made

UNEVEN = made(SequenceImbalance(is_sent=True), num_microbatches=5, seed=4)
DEALT = replace(UNEVEN, faults=(LptSequences(is_sent=True),))


def squares_of(job):
    """[micro-batches, steps, dp]"""
    return drawn(job)[0]["seq_len_sq"]


def test_every_step_has_the_same_microbatches_on_other_ranks():
    before, after = squares_of(UNEVEN), squares_of(DEALT)
    assert not np.array_equal(before, after)
    for step in range(before.shape[1]):
        assert sorted(before[:, step].ravel()) == sorted(after[:, step].ravel())


def test_what_is_sent_explains_the_durations_on_the_new_ranks():
    healthy = drawn(replace(UNEVEN, faults=()))[0]["forward_s"]
    work = drawn(DEALT)[0]["forward_s"][0, 0] / healthy[0, 0]
    squares = squares_of(DEALT)
    assert np.corrcoef(work.ravel(), squares.ravel())[0, 1] > 0.999999


def test_busiest_rank_has_the_least_work_that_greedy_assignment_finds():
    before, after = squares_of(UNEVEN).sum(axis=0), squares_of(DEALT).sum(axis=0)
    spread = (after.max(axis=1) / after.mean(axis=1)).mean()
    assert spread < 1 + 0.5 * ((before.max(axis=1) / before.mean(axis=1)).mean() - 1)
