"""checkpoint-stall: stops at one interval, where steps end or between them."""

from dataclasses import replace

import pytest

from app.diagnosis.detector import CostFigures, Suspicion
from app.diagnosis.detectors.checkpoint_stall import CheckpointStall
from app.diagnosis.finding import Culprit, RuledOut
from app.synth.faults.stops import CheckpointStalls
from app.synth.normal_variation import SpecialSteps
from app.trace.window import SkippedStep, Window
from tests.diagnosis.jobs import diagnosed, findings_of
from tests.diagnosis.stopped_windows import longer_gaps
from tests.diagnosis.suspects import attributed_and_real_cost, job, ruled_out, suspicion
from tests.diagnosis.windows import case_of

CHECKPOINT = CheckpointStall()
UNKNOWN = CostFigures(None, None, None)


def test_all_workers_that_stop_at_an_interval_are_said():
    found = suspicion(CHECKPOINT, job(CheckpointStalls(4, 2.0)))
    assert found.culprits == ()
    assert (found.evidence["every_steps"], found.evidence["steps"]) == (4, [3, 7, 11, 15])
    assert "every 4 steps, as a checkpoint does" in found.wording(UNKNOWN)


def test_the_host_that_writes_slowly_is_named():
    found = suspicion(CHECKPOINT, job(CheckpointStalls(4, 2.0, "host-002")))
    assert found.culprits == (Culprit(host="host-002"),)


@pytest.mark.parametrize("host", [None, "host-002"])
def test_cost_matches_the_counterfactual(host):
    attributed, real = attributed_and_real_cost(CHECKPOINT, job(CheckpointStalls(4, 2.0, host)))
    assert attributed == pytest.approx(real, abs=0.02)


def test_gaps_between_steps_count_as_lost_time():
    window = longer_gaps(job().record(range(16)).window(), every=5, gap_s=2.0)
    seen = diagnosed(window)
    (found,) = findings_of(seen)
    step_s = sum(case_of(window).report.recorded_s)
    assert found.cause == "checkpoint-stall"
    assert found.cost == pytest.approx(6.0 / (step_s + 6.0), abs=0.01)
    assert "between two steps, every 5 steps, as a checkpoint or an evaluation" in found.sentence


def test_marked_checkpoint_steps_are_said_with_their_cost():
    found = CHECKPOINT.detect(case_of(_marked(1.0)))
    assert isinstance(found, Suspicion)
    assert found.evidence["steps"] == [5, 10]
    assert found.evidence["mean_stop_s"] == pytest.approx(1.0, abs=0.1)
    cheap = CHECKPOINT.detect(case_of(_marked(0.01)))
    assert isinstance(cheap, RuledOut)
    assert "a checkpoint step, as the client marks it, takes" in cheap.reason


def _marked(checkpoint_s: float) -> Window:
    """Steps 5 and 10 take longer, and the client marks them."""
    odd = SpecialSteps(checkpoint_every=5, checkpoint_s=checkpoint_s)
    window = job(odd_steps=odd).record(range(15)).window()
    skipped = tuple(SkippedStep(step, "a checkpoint", kind="checkpoint") for step in (5, 10))
    left = window.only([step for step in window.steps if step not in (5, 10)])
    return replace(left, skipped=skipped)


@pytest.mark.parametrize(
    ("made", "is_undecided"),
    [
        (job(), False),
        (job(CheckpointStalls(7, 2.0)), True),  # two stops show no interval
        (job(odd_steps=SpecialSteps(evaluate_every=4, evaluation_s=3.0)), False),
        (job(dp=1, pp=1), False),
    ],
)
def test_few_stops_and_evaluations_are_not_named(made, is_undecided):
    assert ruled_out(CHECKPOINT, made).insufficient is is_undecided
