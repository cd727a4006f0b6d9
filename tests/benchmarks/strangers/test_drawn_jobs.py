"""Drawn jobs: the same for the same number, and true costs that can be worked by hand."""

import numpy as np
import pytest

from app.monitor import observe
from app.result.finding import Culprit
from app.result.window_result import mean_s
from benchmarks.strangers.drawn_jobs import JobNumber, draw_job
from benchmarks.strangers.faults.kinds import KINDS
from benchmarks.strangers.figures import figures_of
from benchmarks.strangers.scoring import culprits_of, judge
from benchmarks.strangers.shape import Shape
from tests.results import finding, window_result


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_fault_costs_time_and_is_drawn_the_same_again(kind):
    number = JobNumber(5, "single", 3, (kind,))
    job, again = draw_job(number), draw_job(number)
    assert job.faults == again.faults
    assert job.step_s == again.step_s
    assert 0 < job.faults[0].cost < 0.95
    assert (1 if KINDS[kind].is_sample else 8) <= job.num_steps <= 40
    if job.window is not None and again.window is not None:
        assert np.array_equal(job.window.trace.duration_s, again.window.trace.duration_s)


def test_a_healthy_job_is_recorded_as_long_as_simulated():
    for index in range(4):
        job = draw_job(JobNumber(6, "healthy", index))
        assert job.window is not None
        found = observe(job.window).result
        assert mean_s(found, "recorded") == pytest.approx(job.step_s, rel=0.03)
        assert found.fidelity.discrepancy is not None
        assert found.fidelity.discrepancy < 0.05


def judged(job, *findings):
    found = [finding(cause, culprits=culprits, onset_step=None) for cause, culprits in findings]
    return judge(job, window_result(findings=found), 0.0)


def test_an_innocent_is_a_wrong_name_even_beside_the_right_one():
    job = draw_job(JobNumber(5, "single", 3, ("slow-gpu",)))
    (dp_rank, stage), = job.faults[0].truth.guilty  # fmt: skip
    right = Culprit(dp_rank, stage)
    innocent = Culprit((dp_rank + 1) % job.shape.dp, (stage + 1) % job.shape.pp)
    outcomes = [
        judged(job, *findings).outcome
        for findings in (
            [("slow-worker", [right])],
            [("slow-worker", [right, innocent])],
            [("slow-worker", [right]), ("slow-link", [innocent])],
            [("gc-pause", [right])],
            [],
        )
    ]
    assert outcomes == ["right", "wrong", "wrong", "wrong", "missed"]


def test_a_host_stands_for_its_workers():
    shape = Shape(4, 2, 8, gpus_per_host=2)
    assert culprits_of(shape, [Culprit(host="node-001")]) == {(2, 0), (3, 0)}
    assert culprits_of(shape, [Culprit(stage=1)]) == {(dp_rank, 1) for dp_rank in range(4)}


def test_figures_miss_the_bars_that_do_not_hold():
    healthy = draw_job(JobNumber(5, "healthy", 0))
    named, silent = judged(healthy, ("slow-link", [Culprit(stage=0)])), judged(healthy)
    assert figures_of([silent])["missed_bars"] == []
    assert figures_of([silent, named])["missed_bars"] == ["false_causes_healthy"]
