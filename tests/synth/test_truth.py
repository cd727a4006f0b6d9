"""What a made job's faults really cost."""

import json

import numpy as np
import pytest

from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import GcPauses, PlannedGc, SilentWorker
from app.synth.faults.slow_compute import SlowStage, SlowWorker
from app.synth.job import SimulatedJob
from app.synth.truth import step_times, truth_of, without_fault
from app.trace.job import Parallelism
from tests.synth.faulty_jobs import compute_only_costs, costs_of

EXACT = compute_only_costs(forward_s=1.0, backward_s=2.0)


def made(*faults, dp=2, pp=1, num_microbatches=4, costs=EXACT):
    return SimulatedJob(Parallelism(dp, pp), num_microbatches, costs=costs, faults=faults)


def test_a_slow_worker_without_a_pipeline_costs_what_everybody_waits_for():
    # Four micro-batches of 3 s: 12 s, and 18 s with the slow worker.
    assert costs_of(made(SlowWorker(1, 0, 1.5)), range(4)) == [pytest.approx(1 / 3)]


def test_a_slow_stage_costs_by_the_closed_form_of_1f1b():
    # Two stages, four micro-batches: 5 * 3 s without; the slow stage sets the pace of all but
    # the 3 s that the other one has at the ends.
    (cost,) = costs_of(made(SlowStage(1, 2.0), pp=2), range(2))
    assert cost == pytest.approx(1 - 15 / (4 * 6 + 3))


def test_a_cost_is_over_the_steps_that_were_asked_for():
    job = made(SlowWorker(1, 0, 1.5, when=FaultSteps(2, 2)))
    assert costs_of(job, [0, 1]) == [0.0]
    assert costs_of(job, [2, 3]) == [pytest.approx(1 / 3)]
    # 12, 12, 18 and 18 s, where 12 each would do.
    assert costs_of(job, range(4)) == [pytest.approx(1 - 48 / 60)]
    assert costs_of(job, [3, 0]) == [pytest.approx(1 - 24 / 30)]


def test_of_two_faults_each_is_taken_out_alone():
    # 12 s; the first worker alone takes 18 s, the second one 24 s, both of them 24 s.
    job = made(SlowWorker(0, 0, 1.5), SlowWorker(1, 0, 2.0))
    assert costs_of(job, range(2)) == [pytest.approx(0.0), pytest.approx(1 - 18 / 24)]


def test_what_takes_no_time_has_no_cost():
    job = made(SilentWorker(0, 0), SlowWorker(1, 0, 1.5))
    assert costs_of(job, range(2)) == [None, pytest.approx(1 / 3)]
    assert costs_of(made(), range(2)) == []
    assert costs_of(made(SilentWorker(0, 0)), range(2)) == [None]


def test_the_job_without_a_fault_has_the_same_noise_and_the_other_faults_the_same_chance():
    pauses = GcPauses(0.3, 0.5)
    both = made(SlowWorker(1, 0, 1.5), pauses, costs=OperationCosts())
    alone = made(SlowStage(0, 1.0), pauses, costs=OperationCosts())
    np.testing.assert_array_equal(
        without_fault(both, 0).make(range(6)).duration_s, alone.make(range(6)).duration_s
    )


def test_step_times_are_those_of_the_trace():
    job = made(GcPauses(0.3, 0.5), dp=4, pp=3, costs=OperationCosts())
    trace = job.make([4, 9])
    for step, seconds in zip([4, 9], step_times(job, [4, 9]), strict=True):
        of_step = trace.select(trace.step == step)
        ends_s = of_step.start_s + of_step.duration_s
        assert seconds == pytest.approx(ends_s.max() - of_step.start_s.min())


def test_the_truth_names_cause_culprit_severity_and_time():
    job = made(SlowWorker(1, 0, 1.5, when=FaultSteps(2, 10)), PlannedGc(), SilentWorker(0, 0))
    truth = json.loads(json.dumps(truth_of(job, range(4)), allow_nan=False))
    slow, collected, silent = truth["faults"]
    # Of 12, 12, 18 and 18 s, and the pause of about 0.3 s in the first step.
    assert slow.pop("cost") == pytest.approx(1 - 48.3 / 60.3, abs=0.001)
    assert slow.pop("cost_while_it_lasts") == pytest.approx(1 / 3)
    assert slow.pop("step_time_without_s")[1:] == pytest.approx([12.0] * 3)
    assert slow == {
        "fault": "slow-worker",
        "cause": "slow-worker",
        "culprits": [{"dp_rank": 1, "stage": 0, "host": "host-000"}],
        "severity": {"dp_rank": 1, "stage": 0, "slowdown": 1.5},
        "first_step": 2,
        "last_step": 11,
    }
    assert (collected["cause"], collected["culprits"], collected["last_step"]) == (
        "gc-pause",
        [],
        None,
    )
    assert (silent["cost"], silent["step_time_without_s"]) == (None, None)
    assert truth["steps"] == [0, 1, 2, 3]
    assert len(truth["step_time_s"]) == 4
