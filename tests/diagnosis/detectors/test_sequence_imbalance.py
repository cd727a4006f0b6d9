from dataclasses import dataclass, replace

import numpy as np
import pytest

from app.diagnosis.evidence.long_microbatches import always_long
from app.diagnosis.evidence.sequence_lengths import relative_durations
from app.result.finding import Culprit
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps, affected_steps
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.sequence_imbalance import _set_lengths as tell
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.schedules import Interleaved
from tests.diagnosis.jobs import (
    NUM_STEPS,
    case_of,
    diagnosed,
    findings_of,
    made,
    only_finding,
    reason_against,
    window_of,
)
from tests.synth.faulty_jobs import costs_of

CAUSE = "sequence-imbalance"


@dataclass(frozen=True, slots=True)
class LongOnOneRank(SequenceImbalance):
    """Four in ten micro-batches of dp rank 1 have sequences twice as long."""

    def change(self, drawn, world, lasts, rng_of):
        shape = world.num_microbatches, world.parallelism.dp_size
        for at, step in affected_steps(drawn, lasts):
            squares = np.full(shape, 1_000_000)
            squares[rng_of(step).random(shape[0]) < 0.4, 1] *= 4
            drawn.forward_s[..., at, :] *= 0.5 + squares / 2e6
            drawn.backward_s[..., at, :] *= 0.5 + squares / 2e6
            if self.is_sent:
                tell(drawn, at, np.full(shape, 4096), squares)


@dataclass(frozen=True, slots=True)
class LongLastMicroBatch(Fault):
    """Sequences of the last micro-batch are 1.3 to 1.7 times as long, others' all alike."""

    directions: tuple[str, ...] = ("forward_s", "backward_s")
    num_stages: int | None = None  # all
    owner: str = "all"  # "one" dp rank, or another "in turn"

    def change(self, drawn, world, lasts, rng_of):
        dp_size = world.parallelism.dp_size
        for at, step in affected_steps(drawn, lasts):
            factor = rng_of(step).uniform(1.3, 1.7, dp_size)
            has_it = {"all": range(dp_size), "one": [1], "in turn": [step % dp_size]}
            factor[[rank for rank in range(dp_size) if rank not in has_it[self.owner]]] = 1.0
            for name in self.directions:
                getattr(drawn, name)[: self.num_stages, ..., -1, at, :] *= factor


@pytest.mark.parametrize(("dp", "pp"), [(4, 4), (4, 1), (1, 2)])
def test_a_micro_batch_that_is_always_long_costs_what_it_takes_beyond_the_others(dp, pp):
    job = made(LongLastMicroBatch(), dp=dp, pp=pp)
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits) == (CAUSE, ())
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)
    assert (found.evidence["microbatches"], found.persistence) == ([7], "chronic")
    assert found.sentence.startswith("Sequence lengths are uneven: micro-batch 7 takes 1.")


@pytest.mark.parametrize(("dp", "pp"), [(16, 4), (4, 1)])
@pytest.mark.parametrize(
    ("owner", "said"),
    [
        ("one", "micro-batch 7 of dp 1 takes"),
        ("in turn", "micro-batch 7 of one dp rank or another"),
    ],
)
def test_a_long_micro_batch_of_one_replica_slows_no_worker(dp, pp, owner, said):
    job = made(LongLastMicroBatch(owner=owner, when=FaultSteps(5)), dp=dp, pp=pp)
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits, found.onset_step) == (CAUSE, (), 5)
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)
    assert said in found.sentence


def test_sorted_lengths_keep_their_work():
    """No micro-batch is the exception where all differ, though each does so in every step."""

    class Sorted(LongLastMicroBatch):
        def change(self, drawn, world, lasts, rng_of):
            levels = np.linspace(0.5, 1.5, world.num_microbatches)
            drawn.forward_s *= levels[:, None, None]
            drawn.backward_s *= levels[:, None, None]

    assert always_long(case_of(window_of(made(Sorted(), dp=4, pp=2)))) is None


@pytest.mark.parametrize(
    "fault",
    [
        LongLastMicroBatch(directions=("forward_s",)),
        LongLastMicroBatch(directions=("backward_s",)),
        LongLastMicroBatch(num_stages=1),
    ],
)
def test_a_position_that_is_long_in_one_direction_or_stage_is_no_sequence(fault):
    seen = findings_of(diagnosed(window_of(made(fault, dp=4, pp=4))))
    assert CAUSE not in {finding.cause for finding in seen}


@pytest.mark.parametrize(("dp", "pp"), [(4, 4), (8, 1), (2, 2)])
@pytest.mark.parametrize("is_sent", [False, True])
def test_uneven_sequences_cost_what_even_ones_win(dp, pp, is_sent):
    job = made(SequenceImbalance(is_sent=is_sent), dp=dp, pp=pp)
    found = only_finding(diagnosed(window_of(job)))
    assert (found.cause, found.culprits) == (CAUSE, ())
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.015)
    assert found.evidence["pearson_r"] >= 0.9
    assert found.evidence["coefficient_of_variation"] >= 0.05
    assert ("pearson_r_with_lengths_squared" in found.evidence) == is_sent
    assert found.sentence.startswith("Sequence lengths are uneven: a different dp rank is slow")


@pytest.mark.parametrize("dp", [2, 32])  # of 32, not all are looked at
def test_the_only_rank_with_long_sequences_is_named_where_lengths_are_sent(dp):
    found = only_finding(diagnosed(window_of(made(LongOnOneRank(is_sent=True), dp=dp, pp=2))))
    assert (found.cause, found.culprits) == (CAUSE, (Culprit(dp_rank=1),))
    assert found.evidence["pearson_r"] >= 0.9
    assert found.sentence.startswith("Sequence lengths are uneven on dp 1 alone")
    assert found.persistence == "chronic"


@pytest.mark.parametrize(("silent", "said"), [(3, -1), (0, 0)])
def test_a_rank_without_lengths_hides_no_other(silent, said):
    window = window_of(made(LongOnOneRank(is_sent=True), dp=4, pp=2))
    assert window.trace.seq_len_sq is not None
    squares = window.trace.seq_len_sq.copy()
    rows = np.flatnonzero(window.trace.dp_rank == silent)
    squares[rows if said < 0 else rows[:1]] = said  # no lengths at all, or one of nothing
    told = replace(window, trace=replace(window.trace, seq_len_sq=squares))
    assert only_finding(diagnosed(told)).culprits == (Culprit(dp_rank=1),)


def test_without_lengths_there_is_no_culprit():
    found = findings_of(diagnosed(window_of(made(LongOnOneRank(), dp=2, pp=2))))
    assert {each.culprits for each in found if each.cause == CAUSE} <= {()}


def test_chunks_of_different_cost_are_no_uneven_sequences():
    costs = OperationCosts(chunk_factors=(1.0, 1.0, 1.0, 1.6))
    job = made(pp=2, vpp=2, costs=costs, schedule=Interleaved())
    assert CAUSE not in {found.cause for found in findings_of(diagnosed(window_of(job)))}


def test_even_sequences_leave_chunk_costs_unchanged():
    costs = OperationCosts(chunk_factors=(0.6, 0.6, 1.4, 1.4))
    faults = (SequenceImbalance(attention_share=0.5),)
    job = made(*faults, pp=2, vpp=2, costs=costs, schedule=Interleaved())
    found = only_finding(diagnosed(window_of(job)))
    assert found.cost == pytest.approx(costs_of(job, range(NUM_STEPS))[0], abs=0.01)


@pytest.mark.parametrize("fault", [SlowWorker(0, 0, 2.0), LongLastStage()])
def test_other_causes_are_no_sequence_imbalance(fault):
    # Pooled over workers or stages it would be near 1.
    assert "may be chance" in reason_against(diagnosed(window_of(made(fault))), CAUSE)


def test_pauses_do_not_hide_uneven_sequences():
    job = made(SequenceImbalance(), GcPauses(rate=0.2, pause_s=0.3), dp=4, pp=2)
    assert CAUSE in {found.cause for found in findings_of(diagnosed(window_of(job)))}


def test_noise_of_any_size_is_no_sequence_imbalance():
    seen = diagnosed(window_of(made(costs=OperationCosts(noise=0.2))))
    assert "do not go together" in reason_against(seen, CAUSE)


def test_relative_durations_are_by_item_and_step():
    # One stage, two items, three steps of three replicas; the second item takes twice as long, the
    # third step 1.5 times, and one computation 1.3 times.
    item, step = np.array([1.0, 2.0])[:, None], np.array([1.0, 1.0, 1.5])
    duration_s = np.broadcast_to(item * step, (3, 1, 2, 3)).copy()
    duration_s[1, 0, 1, 0] *= 1.3
    want = np.ones((3, 1, 2, 3))
    want[1, 0, 1, 0] = 1.3
    before = duration_s.copy()
    np.testing.assert_allclose(relative_durations(duration_s), want)
    np.testing.assert_array_equal(duration_s, before)
