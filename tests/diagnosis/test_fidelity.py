"""Causes in windows whose replay is far from the record: each by its own evidence."""

import dataclasses

import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.fidelity import Fidelity, without_replay
from app.diagnosis.repair import Repaired
from app.engine.what_if import Replayer
from app.result.causes import CAUSES
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.ops import OP_CODES
from app.trace.window import Window
from tests.diagnosis.jobs import (
    NUM_STEPS,
    case_of,
    diagnosed,
    findings_of,
    made,
    reason_against,
    window_of,
)
from tests.synth.faulty_jobs import costs_of

GAP_S = 1.0


def with_gaps(window: Window, every: int, gap_s: float = GAP_S) -> Window:
    """The window with an unexplained gap before the optimizer in every `every`-th step."""
    trace = window.trace
    late = (trace.optype == OP_CODES["optimizer"]) & (trace.step % every == 0)
    start_s = trace.start_s + gap_s * late
    origin_ns = np.array(window.origin_ns, np.int64)
    steps = np.array(window.steps)
    before = np.concatenate([[0], np.cumsum(steps[:-1] % every == 0)])
    return dataclasses.replace(
        window,
        trace=dataclasses.replace(trace, start_s=start_s),
        origin_ns=tuple((origin_ns + np.rint(before * gap_s * 1e9).astype(np.int64)).tolist()),
    )


def slow(factor: float = 1.6) -> SimulatedJob:
    return made(SlowWorker(1, 1, factor))


def test_a_slow_worker_is_named_where_half_of_the_steps_have_unexplained_gaps():
    plain = window_of(slow())
    (found,) = findings_of(diagnosed(with_gaps(plain, 2)))
    assert (found.cause, found.culprits[0].dp_rank) == ("slow-worker", 1)
    # A share of the recorded time, gaps included.
    recorded_s = diagnosed(plain).new_history.step_s.mean()
    cost = costs_of(slow(), range(NUM_STEPS))[0]
    assert found.cost == pytest.approx(cost * recorded_s / (recorded_s + GAP_S / 2), abs=0.01)
    sentence, _, note = found.sentence.partition(". ")
    assert sentence.endswith("of the job's GPU time")
    assert note.startswith("Late launches that no cause explains take another")
    assert found.parts
    assert note == found.parts.note
    assert found.evidence["steps_near_record"] == NUM_STEPS // 2
    assert found.confidence <= 0.9


def test_a_long_last_stage_is_named_where_half_of_the_steps_have_unexplained_gaps():
    found = diagnosed(with_gaps(window_of(made(LongLastStage())), 2))
    assert [each.cause for each in findings_of(found)] == ["stage-imbalance"]


def test_a_cause_is_withheld_where_all_steps_have_unexplained_gaps():
    seen = diagnosed(with_gaps(window_of(made(LongLastStage())), 1))
    assert seen.findings is None
    reason = reason_against(seen, "stage-imbalance")
    assert reason.startswith(
        "suspected, but not certain: the replay matches the record (within 5 %) in 0 of 16"
    )
    reasons = [each.reason for each in seen.ruled_out]
    assert len({each.cause for each in seen.ruled_out}) == len(CAUSES) == len(reasons)
    # Only the suspected one is withheld; the others keep what rules them out.
    assert [each.cause for each in seen.ruled_out if "suspected, but" in each.reason] == [
        "stage-imbalance"
    ]
    assert reason_against(seen, "silent-worker").startswith("every worker reported")


def cost_with_gaps(job: SimulatedJob, gap_s: float) -> float:
    """The share of the recorded time that the job's fault costs, with a gap in every step."""
    recorded_s = float(diagnosed(window_of(job)).new_history.step_s.mean())
    share: float = costs_of(job, range(NUM_STEPS))[0]
    return share * recorded_s / (recorded_s + gap_s)


def test_a_worker_that_others_wait_for_is_named_without_the_replay():
    (found,) = findings_of(diagnosed(with_gaps(window_of(slow()), 1)))
    assert (found.cause, found.culprits[0].dp_rank) == ("slow-worker", 1)
    assert found.cost == pytest.approx(cost_with_gaps(slow(), GAP_S), abs=0.01)
    assert found.evidence["without_replay"] == "arrivals"
    assert found.confidence <= 0.9
    assert found.sentence.endswith(
        "The replay matches the record in 0 of 16 steps only: this rests on who comes late to "
        "collectives, and its cost on what the others wait there"
    )


def test_a_long_stage_is_named_where_it_costs_more_than_the_replay_is_off():
    job = made(LongLastStage())
    (found,) = findings_of(diagnosed(with_gaps(window_of(job), 1, 0.1)))
    assert found.cause == "stage-imbalance"
    assert found.cost_range is not None
    low, high = found.cost_range
    assert low < cost_with_gaps(job, 0.1) < high
    assert found.evidence["without_replay"] == "computing"


def nothing_late(group: Replayer) -> Repaired:
    """No row of a group is late."""
    del group
    return Repaired(np.empty(0, np.int64), np.empty((0, 1)))


def test_recorded_rows_are_named_without_the_replay_and_without_a_cost():
    case = case_of(window_of(made()))
    seen = Fidelity(0.2, np.empty(0, np.int64), NUM_STEPS, np.zeros(NUM_STEPS))
    concluded = Suspicion("gc-pause", 0.9, 0.9, (), "paused", delays=nothing_late)
    recorded = dataclasses.replace(concluded, basis="recorded")
    assert without_replay(case, concluded, 0.05, seen) is None
    apart = without_replay(case, recorded, 0.05, seen)
    assert apart is not None
    assert (apart.delays, apart.cost, apart.evidence["without_replay"]) == (None, None, "recorded")
    # Rows of what costs next to nothing are no finding.
    assert without_replay(case, recorded, 0.01, seen) is None


def test_a_healthy_job_with_gaps_has_no_finding():
    assert diagnosed(with_gaps(window_of(made()), 2)).findings is None


def test_a_window_near_its_record_names_causes_without_reserve():
    (found,) = findings_of(diagnosed(window_of(slow())))
    assert "steps_near_record" not in found.evidence
    assert "late launches" not in found.sentence
