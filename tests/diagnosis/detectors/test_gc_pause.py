import dataclasses

import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.gc_pause import GcPause
from app.diagnosis.job_history import History
from app.result.finding import Culprit, RuledOut
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import AllocatorStalls, GcPauses, PlannedGc
from app.synth.faults.slow_compute import SlowWorker
from app.synth.noise import HeavyTailed, LogNormal, Pareto
from app.synth.normal_variation import SpecialSteps
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    denied,
    fact_of,
    job,
    ruled_out,
    suspected,
    suspicion,
)
from tests.diagnosis.windows import case_of, cases
from tests.window_factory import Row, in_row, window, with_columns

GC = GcPause()


def by_hand(*paused, pause_s=9.0, num_steps=4, dp_size=2):
    """Replicas of one stage: two forwards of 1 s, two backwards of 2 s; some pause.

    `paused` are (step, dp rank, optype, micro-batch).
    """
    rows: list[Row] = []
    for step in range(num_steps):
        for dp_rank in range(dp_size):
            timed = [
                (
                    optype,
                    microbatch,
                    own_s + pause_s * ((step, dp_rank, optype, microbatch) in paused),
                )
                for optype, own_s in (("forward-compute", 1.0), ("backward-compute", 2.0))
                for microbatch in range(2)
            ]
            made = in_row(*((optype, took_s) for optype, _, took_s in timed))
            rows += [
                row.on(step=step, dp_rank=dp_rank, mb_id=microbatch)
                for row, (_, microbatch, _) in zip(made, timed, strict=True)
            ]
    return window(rows, dp_size=dp_size)


def test_repair_of_two_pauses_by_hand():
    paused = ((1, 0, "forward-compute", 1), (3, 1, "forward-compute", 0))
    case = case_of(by_hand(*paused))
    found = suspected(GC, case)
    assert found.score == 0.75  # 1 - P(both forward, if both directions were alike)
    assert found.culprits == ()
    assert found.evidence["pauses"] == 2
    assert found.evidence["steps"] == [1, 3]
    assert found.evidence["mean_pause_s"] == pytest.approx(9.0)
    assert found.repair is not None
    [group] = case.replay.groups
    repaired = found.repair(group)
    assert repaired.rows.tolist() == [0, 1]  # forward 0 and 1
    assert repaired.duration_s == pytest.approx(np.ones((2, 8)))


def in_parts(first_backward_s):
    """Two replicas of one stage: a forward in two parts of 1 s, a backward in three, as FSDP2's.

    `first_backward_s` [steps] is what the first part of each step's backward takes; others 2 s.
    """
    rows: list[Row] = []
    for step, first_s in enumerate(first_backward_s):
        timed = [("forward-compute", 1.0)] * 2
        timed += [("backward-compute", part_s) for part_s in (first_s, 2.0, 2.0)]
        rows += [row.on(step=step, dp_rank=dp_rank) for dp_rank in (0, 1) for row in in_row(*timed)]
    return window(rows, dp_size=2)


def test_a_forward_in_parts_is_not_compared_with_its_backward():
    assert isinstance(GC.detect(case_of(in_parts([2.0, 0.5, 2.0, 0.5]))), RuledOut)


def test_one_long_forward_is_not_enough():
    denied(GC, case_of(by_hand((1, 0, "forward-compute", 1))))


def test_long_backwards_are_no_pauses():
    paused = [(step, 0, f"{way}-compute", 1) for step in (1, 3) for way in ("forward", "backward")]
    assert isinstance(GC.detect(case_of(by_hand(*paused))), RuledOut)


def test_as_many_long_backwards_as_forwards_are_noise():
    forwards = [(1, 0, "forward-compute", 1), (3, 1, "forward-compute", 0)]
    backward = (2, 2, "backward-compute", 0)
    alone, both = (case_of(by_hand(*each, dp_size=3)) for each in (forwards, [*forwards, backward]))
    assert isinstance(GC.detect(alone), Suspicion)
    assert isinstance(GC.detect(both), RuledOut)


def test_pauses_of_changing_workers_are_rotating():
    found = suspicion(GC, job(GcPauses(rate=0.1)))
    assert found.culprits == ()
    assert found.onset.persistence == "rotating"
    assert not found.evidence["planned"]
    assert "different workers stop in a forward computation" in fact_of(found)


def test_a_few_workers_that_pause_are_named():
    found = suspicion(GC, job(GcPauses(rate=0.5, workers=((1, 2),))))
    assert found.culprits == (Culprit(1, 2, "host-004"),)
    assert found.evidence["workers"] == [[1, 2]]
    said = fact_of(found)
    assert said.startswith("host-004, rank 9 (dp 1, stage 2) stops in a forward")


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("fault", [GcPauses, PlannedGc])
def test_cost_matches_the_counterfactual(fault, sent):
    made = (
        fault(rate=0.1, is_sent=sent)
        if fault is GcPauses
        else fault(every_steps=4, in_forward=sent)
    )
    attributed, real = attributed_and_real_cost(GC, job(made))
    assert attributed == pytest.approx(real, abs=0.003)


def test_annotated_pauses_count_however_short():
    fault = GcPauses(rate=0.1, pause_s=0.004, is_sent=True)
    found = suspicion(GC, job(fault))
    assert found.evidence["reported_by_client"] == found.evidence["pauses"]
    assert found.evidence["mean_pause_s"] == pytest.approx(0.004, rel=0.1)
    assert ruled_out(GC, job(dataclasses.replace(fault, is_sent=False)))


def test_annotated_collections_of_young_objects_make_no_pause_planned():
    full = GcPauses(rate=0.02, pause_s=0.3, is_sent=True)
    young = PlannedGc(every_steps=1, pause_s=0.002, in_forward=True, is_sent=True)
    found, alone = suspicion(GC, job(full, young)), suspicion(GC, job(full))
    assert not found.evidence["planned"]
    assert found.evidence["pauses"] == alone.evidence["pauses"]
    assert found.evidence["reported_by_client"] > 10 * found.evidence["pauses"]
    assert found.evidence["mean_pause_s"] == pytest.approx(0.3, rel=0.1)


def test_a_lone_worker_with_full_collections_is_no_culprit_where_all_collect():
    fault = GcPauses(rate=0.1, pause_s=0.3, is_sent=True, workers=((1, 1),))
    young = PlannedGc(every_steps=1, pause_s=0.002, in_forward=True, is_sent=True)
    assert len(suspicion(GC, job(fault)).culprits) == 1
    assert suspicion(GC, job(fault, young)).culprits == ()


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        (PlannedGc(every_steps=5), 5),
        (PlannedGc(every_steps=5, in_forward=True), 5),
        (PlannedGc(every_steps=1, when=FaultSteps(10)), 1),
        (PlannedGc(every_steps=1, in_forward=True, is_sent=True), 1),
    ],
)
def test_planned_collections_have_a_period_and_no_culprit(fault, every):
    found = suspicion(GC, job(fault))
    assert found.culprits == ()
    assert (found.evidence["planned"], found.evidence["every_steps"]) == (True, every)
    assert "Every worker stops to collect garbage" in fact_of(found)


def test_a_forward_long_in_every_step_is_no_pause():
    found = ruled_out(GC, job(PlannedGc(every_steps=1, in_forward=True)))
    assert found.insufficient
    assert "that may be what it computes" in found.reason


def test_a_single_long_first_forward_is_no_pause():
    assert ruled_out(GC, job(PlannedGc(every_steps=100, in_forward=True)))


def test_one_common_pause_is_planned_if_earlier_steps_are_periodic():
    *_, third, last = cases(job(PlannedGc(every_steps=9, in_forward=True)), 40)
    found = suspected(GC, third)
    assert found.evidence["steps"] == [27]
    assert found.evidence["every_steps"] == 9
    # Whatever is long in step 36 for all, and never was before.
    replaced = dataclasses.replace(last, history=History())
    assert isinstance(GC.detect(replaced), RuledOut)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "tail", [LogNormal(), Pareto(), HeavyTailed(), HeavyTailed(share=0.05, alpha=1.2)]
)
def test_healthy_tails_are_no_pauses(tail, seed):
    # Forwards of 0.2 s, so that a tail takes hundreds of milliseconds too.
    costs = OperationCosts(forward_s=0.2, backward_s=0.4, noise=0.05, tail=tail)
    assert ruled_out(GC, job(costs=costs, seed=seed))


@pytest.mark.parametrize(
    "made",
    [
        job(SlowWorker(dp_rank=1, stage=1, slowdown=6.0, when=FaultSteps(8))),
        job(SlowWorker(dp_rank=1, stage=1, slowdown=6.0, when=FaultSteps(8, 1))),
        job(AllocatorStalls(workers=((1, 1),), stall_s=0.2)),
        job(odd_steps=SpecialSteps(num_first=2, first_factor=6.0)),
        job(odd_steps=SpecialSteps(evaluate_every=5, checkpoint_every=3)),
    ],
    ids=["slow", "slow for a step", "stalls", "warm-up", "evaluations"],
)
def test_other_causes_of_long_forwards_are_no_pause(made):
    assert ruled_out(GC, made)


def test_pauses_among_healthy_tails_are_still_found():
    tail = HeavyTailed(share=0.02, alpha=1.2)
    found = suspicion(GC, job(GcPauses(rate=0.1), costs=OperationCosts(noise=0.05, tail=tail)))
    assert found.evidence["mean_pause_s"] == pytest.approx(0.3, rel=0.1)


def test_onset_is_the_first_pause_after_a_quiet_time():
    assert suspicion(GC, job(GcPauses(rate=0.3, when=FaultSteps(8)))).onset.onset_step == 8
    assert suspicion(GC, job(GcPauses(rate=0.3))).onset.onset_step is None


def test_one_stop_far_longer_than_the_pauses_is_no_collection():
    # Of 6 s a step, one forward stops for 60 s; the others pause for 9 s.
    pauses = [(step, step % 2, "forward-compute", 1) for step in range(4, 8)]
    with_stop = by_hand((2, 0, "forward-compute", 0), pause_s=60.0, num_steps=16)
    both = with_stop.trace.duration_s.copy()
    paused = by_hand(*pauses, num_steps=16)
    is_other = with_stop.trace.step != 2
    both[is_other] = paused.trace.duration_s[is_other]
    start_s = np.where(is_other, paused.trace.start_s, with_stop.trace.start_s)
    found = suspected(GC, case_of(with_columns(paused, duration_s=both, start_s=start_s)))
    assert found.evidence["steps"] == [4, 5, 6, 7]
    assert found.evidence["longest_pause_s"] == pytest.approx(9.0)
