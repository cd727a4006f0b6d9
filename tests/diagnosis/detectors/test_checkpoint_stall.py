"""checkpoint-stall: stops at one interval, where steps end or between them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.diagnosis.detectors.checkpoint_stall import CheckpointStall
from app.result.finding import Culprit
from app.synth.faults.interruptions import CheckpointStalls
from app.synth.normal_variation import SpecialSteps
from app.trace.window import SkippedStep, Window
from tests.diagnosis.jobs import diagnosed, findings_of
from tests.diagnosis.stopped_windows import longer_gaps
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    denied,
    fact_of,
    job,
    ruled_out,
    suspected,
    suspicion,
)
from tests.diagnosis.windows import case_of

CHECKPOINT = CheckpointStall()


def test_all_workers_that_stop_at_an_interval_are_said():
    found = suspicion(CHECKPOINT, job(CheckpointStalls(4, 2.0)))
    assert found.culprits == ()
    assert (found.evidence["every_steps"], found.evidence["steps"]) == (4, [3, 7, 11, 15])
    assert "every 4 steps, as a checkpoint does" in fact_of(found)


def test_the_host_that_writes_slowly_is_named():
    found = suspicion(CHECKPOINT, job(CheckpointStalls(4, 2.0, "host-002")))
    assert found.culprits == (Culprit(host="host-002"),)


@pytest.mark.parametrize("host", [None, "host-002"])
def test_cost_matches_the_counterfactual(host):
    attributed, real = attributed_and_real_cost(CHECKPOINT, job(CheckpointStalls(4, 2.0, host)))
    assert attributed == pytest.approx(real, abs=0.02)


def test_gaps_between_steps_are_a_fact_without_a_cause():
    window = longer_gaps(job().record(range(16)).window(), every=5, gap_s=2.0)
    seen = diagnosed(window)
    assert findings_of(seen) == ()
    (fact,) = seen.observations
    step_s = sum(case_of(window).report.recorded_s)
    assert fact.kind == "idle-between-steps"
    assert fact.share == pytest.approx(6.0 / (step_s + 6.0), abs=0.02)
    assert "s every 5 steps; the cause is not recorded" in fact.sentence
    answer = denied(CHECKPOINT, case_of(window))
    assert answer.insufficient
    assert "between two steps, every 5 steps, as a checkpoint or an evaluation" in answer.reason


def test_what_the_last_worker_stops_longer_than_the_first_belongs_to_the_stop():
    window = longer_gaps(job(pp=1).record(range(16)).window(), every=5, gap_s=2.0)
    case = case_of(_later_begins(window, every=5, apart_s=0.5))
    found = denied(CHECKPOINT, case)
    assert found.figures["stops"] == 3
    assert found.figures["mean_stop_s"] == pytest.approx(2.5, abs=0.02)
    others_s = 16 * case.report.recorded_s[1]
    assert found.figures["cost"] == pytest.approx(7.5 / (others_s + 7.5), abs=0.01)


def test_without_times_between_steps_an_interval_shows_a_checkpoint_of_unknown_cost():
    window = _later_begins(job(pp=1).record(range(16)).window(), every=5, apart_s=0.05)
    seen = diagnosed(replace(window, origin_ns=None))
    (found,) = findings_of(seen)
    assert (found.cause, found.cost, found.culprits) == ("checkpoint-stall", None, ())
    assert "Every 5 steps all workers begin a step up to 50 ms apart" in found.sentence


def test_an_interval_at_which_little_is_seen_is_undecided():
    window = _later_begins(job(pp=1).record(range(16)).window(), every=5, apart_s=3e-3)
    found = denied(CHECKPOINT, case_of(replace(window, origin_ns=None)))
    assert found.insufficient
    assert "as after a checkpoint: how long that takes is in no step" in found.reason


def test_one_worker_that_begins_late_at_an_interval_is_undecided():
    window = _later_begins(job(pp=1).record(range(16)).window(), every=5, apart_s=0.2, of_one=True)
    found = denied(CHECKPOINT, case_of(replace(window, origin_ns=None)))
    assert found.insufficient
    assert "every 5 steps one worker begins up to 200 ms late" in found.reason


def _later_begins(window: Window, every: int, apart_s: float, *, of_one: bool = False) -> Window:
    """Workers of one stage begin each `every`-th step one after the other, the last one by so much.

    They meet in the first collective after it, which ends later for all.
    """
    trace = window.trace
    start_s, duration_s = trace.start_s.copy(), trace.duration_s.copy()
    late = (trace.step % every == 0) & (trace.step > 0)
    dp_size = window.job.parallelism.dp_size
    turn = (trace.dp_rank + trace.step // every) % dp_size / (dp_size - 1)
    share = (trace.dp_rank == 1).astype(float) if of_one else turn
    codes = window.job.op_types.codes
    meets = np.isin(trace.optype, [codes["params-all-gather"], codes["grads-reduce-scatter"]])
    for key in {*zip(trace.step[late].tolist(), trace.dp_rank[late].tolist(), strict=True)}:
        mine = (trace.step == key[0]) & (trace.dp_rank == key[1])
        met_s = start_s[mine & meets].min()
        own_s = apart_s * float(share[mine][0])
        is_before = start_s[mine] <= met_s
        at = np.flatnonzero(mine)
        first = at[meets[at] & (start_s[at] == met_s)]
        start_s[at] += np.where(is_before, own_s, apart_s)
        duration_s[first] += apart_s - own_s
    columns: dict[str, Any] = {**trace.columns(), "start_s": start_s, "duration_s": duration_s}
    return replace(window, trace=type(trace)(**columns))


def test_marked_checkpoint_steps_are_said_with_their_cost():
    found = suspected(CHECKPOINT, case_of(_marked(1.0)))
    assert found.evidence["steps"] == [5, 10]
    assert found.evidence["mean_stop_s"] == pytest.approx(1.0, abs=0.1)
    cheap = denied(CHECKPOINT, case_of(_marked(0.01)))
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
