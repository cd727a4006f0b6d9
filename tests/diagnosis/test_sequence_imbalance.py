import numpy as np
import pytest

from app.diagnosis.lengths import relative
from app.synth.costs import Costs
from app.synth.faults.gc_pauses import GcPauses
from app.synth.faults.long_last_stage import LongLastStage
from app.synth.faults.sequence_imbalance import SequenceImbalance
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
