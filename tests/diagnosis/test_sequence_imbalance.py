from dataclasses import dataclass, replace

import numpy as np
import pytest

from app.diagnosis.finding import Culprit
from app.diagnosis.lengths import relative
from app.synth.costs import Costs
from app.synth.faults.gc_pauses import GcPauses
from app.synth.faults.long_last_stage import LongLastStage
from app.synth.faults.pauses import struck
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.sequence_imbalance import _tell as tell
from app.synth.faults.slow_worker import SlowWorker
from app.synth.schedules.interleaved import Interleaved
from app.synth.truth import costs_of
from tests.diagnosis.jobs import (
    NUM_STEPS,
    diagnosed,
    findings_of,
    made,
    only_finding,
    reason_against,
    window_of,
)

CAUSE = "sequence-imbalance"


@dataclass(frozen=True, slots=True)
class LongOnOneRank(SequenceImbalance):
    """Four in ten micro-batches of dp rank 1 have sequences twice as long."""

    def change(self, drawn, world, lasts, rng_of):
        shape = world.num_microbatches, world.parallelism.dp_size
        for at, step in struck(drawn, lasts):
            squares = np.full(shape, 1_000_000)
            squares[rng_of(step).random(shape[0]) < 0.4, 1] *= 4
            drawn.forward_s[..., at, :] *= 0.5 + squares / 2e6
            drawn.backward_s[..., at, :] *= 0.5 + squares / 2e6
            if self.is_sent:
                tell(drawn, at, np.full(shape, 4096), squares)


@pytest.mark.parametrize(("dp", "pp"), [(4, 4), (8, 1), (2, 2)])
@pytest.mark.parametrize("is_sent", [False, True])
def test_uneven_sequences_are_named_with_what_dealing_them_out_evenly_wins(dp, pp, is_sent):
    job = made(SequenceImbalance(is_sent=is_sent), dp=dp, pp=pp)
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits) == (CAUSE, ())
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.015)
    assert found.evidence["pearson_r"] >= 0.9
    assert found.evidence["coefficient_of_variation"] >= 0.05
    assert ("pearson_r_with_lengths_squared" in found.evidence) == is_sent
    assert found.sentence.startswith("Sequence lengths are uneven: a different dp rank is slow")


@pytest.mark.parametrize("dp", [2, 32])  # of 32, not all are looked at
def test_a_rank_that_alone_has_long_sequences_is_named_where_lengths_are_sent(dp):
    found = only_finding(diagnosed(window_of(made(LongOnOneRank(is_sent=True), dp=dp, pp=2))))
    assert (found.cause, found.culprits) == (CAUSE, (Culprit(dp_rank=1),))
    assert found.evidence["pearson_r"] >= 0.9
    assert found.sentence.startswith("Sequence lengths are uneven on dp 1 alone")
    assert found.persistence == "chronic"


@pytest.mark.parametrize(("silent", "said"), [(3, -1), (0, 0)])
def test_a_rank_that_says_nothing_hides_no_other(silent, said):
    window = window_of(made(LongOnOneRank(is_sent=True), dp=4, pp=2))
    assert window.trace.seq_len_sq is not None
    squares = window.trace.seq_len_sq.copy()
    rows = np.flatnonzero(window.trace.dp_rank == silent)
    squares[rows if said < 0 else rows[:1]] = said  # no lengths at all, or one of nothing
    told = replace(window, trace=replace(window.trace, seq_len_sq=squares))
    assert only_finding(diagnosed(told)).culprits == (Culprit(dp_rank=1),)


def test_where_they_are_not_sent_nobody_is_named():
    found = findings_of(diagnosed(window_of(made(LongOnOneRank(), dp=2, pp=2))))
    assert {each.culprits for each in found if each.cause == CAUSE} <= {()}


def test_chunks_of_different_cost_are_no_uneven_sequences():
    costs = Costs(chunk_factors=(1.0, 1.0, 1.0, 1.6))
    job = made(pp=2, vpp=2, costs=costs, schedule=Interleaved())
    assert CAUSE not in {found.cause for found in findings_of(diagnosed(window_of(job)))}


def test_dealing_sequences_out_evenly_leaves_chunks_as_they_are():
    costs = Costs(chunk_factors=(0.6, 0.6, 1.4, 1.4))
    faults = (SequenceImbalance(attention_share=0.5),)
    job = made(*faults, pp=2, vpp=2, costs=costs, schedule=Interleaved())
    found = only_finding(diagnosed(window_of(job)))
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


@pytest.mark.parametrize("fault", [SlowWorker(0, 0, 2.0), LongLastStage()])
def test_r_within_a_worker_does_not_take_other_causes_for_it(fault):
    # Pooled over workers or stages it would be near 1.
    assert "may be chance" in reason_against(diagnosed(window_of(made(fault))), CAUSE)


def test_pauses_do_not_hide_uneven_sequences():
    job = made(SequenceImbalance(), GcPauses(rate=0.2, pause_s=0.3), dp=4, pp=2)
    assert CAUSE in {found.cause for found in findings_of(diagnosed(window_of(job)))}


def test_noise_of_any_size_is_not_put_down_to_lengths():
    seen = diagnosed(window_of(made(costs=Costs(noise=0.2))))
    assert "do not go together" in reason_against(seen, CAUSE)


def test_durations_are_held_against_their_item_and_their_step():
    # One stage, two items, three steps of three replicas; the second item takes twice as long, the
    # third step 1.5 times, and one computation 1.3 times.
    item, step = np.array([1.0, 2.0])[:, None], np.array([1.0, 1.0, 1.5])
    duration_s = np.broadcast_to(item * step, (3, 1, 2, 3)).copy()
    duration_s[1, 0, 1, 0] *= 1.3
    want = np.ones((3, 1, 2, 3))
    want[1, 0, 1, 0] = 1.3
    before = duration_s.copy()
    np.testing.assert_allclose(relative(duration_s), want)
    np.testing.assert_array_equal(duration_s, before)
