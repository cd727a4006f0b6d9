"""job-stop: one worker, or all of them, do nothing for longer than a step takes."""

from dataclasses import replace

import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.job_stop import JobStop
from app.diagnosis.evidence.interruptions import InterruptionKind, rows_of_group
from app.diagnosis.evidence.stops import is_follower
from app.result.finding import Culprit
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import CheckpointStalls
from app.synth.faults.interruptions import JobStop as StoppedWorkers
from app.synth.noise import HeavyTailed
from app.synth.normal_variation import SpecialSteps
from app.trace.job import Parallelism
from tests.diagnosis.stopped_windows import freeze, longer_gaps
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    denied,
    fact_of,
    job,
    recorded,
    ruled_out,
    suspected,
    suspicion,
)
from tests.diagnosis.windows import case_of
from tests.window_factory import Row, trace

STOP = JobStop()
AT_STEP_7 = FaultSteps(7)


def test_the_worker_that_all_others_wait_for_is_named():
    found = suspicion(STOP, job(StoppedWorkers(((1, 2),), when=AT_STEP_7)))
    assert found.culprits == (Culprit(1, 2, "host-004"),)
    assert (found.onset.onset_step, found.onset.end_step, found.onset.persistence) == (
        7,
        7,
        "transient",
    )
    assert found.evidence["longest_stop_s"] == pytest.approx(20.0, abs=0.1)
    assert fact_of(found, is_past=True) == (
        "host-004, rank 9 (dp 1, stage 2) stopped for 20 s before a backward computation in "
        "step 7, and all others waited"
    )


def test_several_stops_are_said_with_the_first_step_and_the_longest():
    both = (
        StoppedWorkers(((1, 2),), when=FaultSteps(7)),
        StoppedWorkers(((1, 2),), 25.0, when=FaultSteps(11)),
    )
    found = suspicion(STOP, job(*both))
    assert (found.onset.onset_step, found.onset.end_step) == (7, 11)
    assert "stopped 2 times (steps 7, 11), for up to 25 s before a backward" in fact_of(
        found, is_past=True
    )


def test_stops_are_weighed_by_what_they_take_not_counted():
    often = [
        StoppedWorkers(((1, 2),), stop_s, when=FaultSteps(step))
        for step, stop_s in ((3, 0.25), (7, 0.2), (9, 0.25), (13, 0.3))
    ]
    found = suspicion(STOP, job(*often))
    assert found.evidence["steps"] == [3, 7, 9, 13]
    assert found.cost == pytest.approx(0.1, abs=0.05)
    assert found.onset.persistence == "transient"
    cheap = denied(STOP, recorded(job(often[0], parallelism=Parallelism(4, 4)), 40))
    assert "of the time" in cheap.reason


def test_stops_at_an_interval_are_said_with_it():
    every_four = [StoppedWorkers(((1, 2),), when=FaultSteps(step)) for step in (3, 7, 11)]
    assert suspicion(STOP, job(*every_four)).onset.every_steps == 4


def test_cost_matches_the_counterfactual():
    made = job(StoppedWorkers(((1, 2),), when=AT_STEP_7))
    attributed, real = attributed_and_real_cost(STOP, made)
    assert attributed == pytest.approx(real, abs=0.01)


def test_cost_is_the_recorded_one_whatever_a_replay_has():
    case = case_of(job(StoppedWorkers(((1, 2),), when=AT_STEP_7)).record(range(16)).window())
    found = suspected(STOP, case)
    assert found.is_cost_recorded
    recorded_s = case.report.recorded_s
    excess_s = recorded_s[7] - np.median(recorded_s)
    assert found.cost == pytest.approx(excess_s / recorded_s.sum())


@pytest.mark.parametrize(("until_s", "follows"), [(9.0, True), (5.001, False)])
def test_workers_that_go_on_later_with_a_receive_only_follow(until_s, follows):
    case = case_of(job().record(range(4)).window())
    [group] = case.groups
    template = group.replayer.template
    [own, received] = (template.ops(stage, "backward-recv")[0] for stage in (1, 2))
    rows, lanes, seconds = np.array([own, received]), np.array([0, 0]), np.array([4.0, 4.0])
    stops = rows_of_group(case, 0, InterruptionKind.LATE, rows, lanes, seconds, 0.0)
    assert is_follower(group, stops, np.array([5.0, until_s])).tolist() == [False, follows]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_stop_of_all_workers_in_the_middle_of_a_step_names_nobody(share):
    window = freeze(job().record(range(16)).window(), step=7, at_share=share, stop_s=10.0)
    found = STOP.detect(case_of(window))
    assert found.score >= 0.5
    assert isinstance(found, Suspicion)
    assert found.culprits == ()
    assert "all workers stopped for 10 s in" in fact_of(found, is_past=True)


def test_a_gap_between_steps_may_be_an_evaluation():
    case = case_of(longer_gaps(job().record(range(16)).window(), every=9, gap_s=10.0))
    found = denied(STOP, case)
    assert found.insufficient
    assert "all workers stop for 10 s before step 9" in found.reason


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(CheckpointStalls(5, 5.0)),
        job(odd_steps=SpecialSteps(evaluate_every=9, evaluation_s=30.0)),
        job(odd_steps=SpecialSteps(num_first=2, first_factor=6.0)),
        job(costs=OperationCosts(noise=0.05, tail=HeavyTailed(share=0.1, alpha=1.1))),
        job(dp=1, pp=1),
    ],
)
def test_evaluations_first_steps_and_noise_are_no_single_stops(made):
    assert ruled_out(STOP, made)


def test_too_few_steps_show_no_usual_step():
    assert ruled_out(STOP, job(StoppedWorkers(((1, 2),), when=FaultSteps(1))), 3).insufficient


@pytest.mark.parametrize(("noted_s", "is_stop"), [(20.0, False), (2.0, True)])
def test_others_do_not_stop_where_one_worker_notes_a_pause_as_long(noted_s, is_stop):
    # The note is another worker's, as if the one that stops only posted a receive late.
    window = job(StoppedWorkers(((1, 2),), when=AT_STEP_7)).record(range(16)).window()
    note = trace([Row("gc-pause", 0.0, noted_s, step=7, dp_rank=1, stage=1)], Parallelism(4, 4))
    columns = window.trace.columns()
    joined = {name: np.append(columns[name], column) for name, column in note.columns().items()}
    found = STOP.detect(case_of(replace(window, trace=type(note)(**joined))))
    assert isinstance(found, Suspicion) == is_stop
