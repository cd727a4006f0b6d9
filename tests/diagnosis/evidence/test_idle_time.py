"""Idle time of all ranks between steps: worked by hand, and what rows of the client say of it."""

from dataclasses import replace

import numpy as np
import pytest

from app.diagnosis.detectors.data_loading import DataLoading
from app.diagnosis.detectors.gc_pause import GcPause
from app.diagnosis.evidence.idle_time import idle_time
from app.diagnosis.observations import observations_of
from tests.diagnosis.jobs import diagnosed, findings_of
from tests.diagnosis.stopped_windows import NS_PER_S, longer_gaps
from tests.diagnosis.suspects import denied, job, suspected
from tests.diagnosis.windows import case_of
from tests.window_factory import Row, in_row, trace, window

BUSY_S = 3.1  # of a step: a gather of 0.1 s, a forward of 1 s, a backward of 2 s


def by_hand(gaps_s, notes=(), late_s=0.0, pp_size=1):
    """Two replicas; before each step all are idle for so long, and `notes` are the client's rows.

    The forward begins `late_s` after the gather.
    """
    rows = []
    for step in range(len(gaps_s)):
        for dp_rank in range(2):
            computed = in_row(
                ("forward-compute", 1.0), ("backward-compute", 2.0), start_s=0.1 + late_s
            )
            made = [Row("params-all-gather", 0.0, 0.1), *computed]
            rows += [row.on(step=step, dp_rank=dp_rank, mb_id=0) for row in made]
    begins_s = np.cumsum(gaps_s) + (BUSY_S + late_s) * np.arange(len(gaps_s))
    origin_ns = tuple(int(begin_s * NS_PER_S) for begin_s in begins_s)
    made_window = window([*rows, *notes], dp_size=2)
    return replace(made_window, origin_ns=origin_ns)


def test_idle_time_is_that_from_the_end_of_a_step_to_the_first_computation_without_gathers():
    idle = idle_time(case_of(by_hand([0.0, 0.5, 0.0, 0.2], late_s=0.3)))
    np.testing.assert_allclose(idle.idle_s, [0.3, 0.8, 0.3, 0.5], atol=1e-6)
    np.testing.assert_allclose(idle.unreported_s, idle.idle_s)


def test_without_times_between_steps_only_what_follows_the_gather_is_known():
    case = case_of(replace(by_hand([0.0, 0.5, 0.5, 0.5], late_s=0.3), origin_ns=None))
    np.testing.assert_allclose(idle_time(case).idle_s, 0.3, atol=1e-6)


@pytest.mark.parametrize("name", ["gc-pause", "data-wait"])
@pytest.mark.parametrize("is_at_end", [False, True])
def test_rows_at_the_end_of_a_step_and_at_the_begin_of_the_next_explain_the_gap(name, is_at_end):
    note = Row(name, BUSY_S, 0.4, step=1) if is_at_end else Row(name, -0.5, 0.4, step=2)
    idle = idle_time(case_of(by_hand([0.0, 0.5, 0.5, 0.5], [replace(note, dp_rank=1)])))
    np.testing.assert_allclose(idle.reported_s[name], [0.0, 0.0, 0.4, 0.0], atol=1e-6)
    np.testing.assert_allclose(idle.unreported_s, [0.0, 0.5, 0.1, 0.5], atol=1e-6)


def test_a_gap_of_all_ranks_is_a_fact_without_a_cause():
    seen = diagnosed(by_hand([0.0, *[0.5] * 7]))
    assert findings_of(seen) == ()
    [fact] = seen.observations
    share = 0.5 / (BUSY_S + 0.5)  # before the first step is not known
    assert fact.kind == "idle-between-steps"
    assert fact.share == pytest.approx(share)
    assert fact.sentence == (
        "All ranks are idle for 14 % of the GPU time between steps, 500 ms a step; the cause is "
        "not recorded"
    )
    assert denied(DataLoading(), case_of(by_hand([0.0, *[0.5] * 7]))).insufficient


def test_a_short_gap_is_not_worth_a_sentence():
    assert observations_of(case_of(by_hand([0.0, *[0.05] * 7]))) == ()


@pytest.mark.parametrize(
    ("gaps_s", "said"),
    [
        ([0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0], "4 s before step 3"),
        ([0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "1 s every 2 steps"),
        ([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0], "1 s in 4 of 8 steps"),
    ],
)
def test_the_fact_says_when(gaps_s, said):
    [fact] = observations_of(case_of(by_hand(gaps_s)))
    assert f"between steps, {said}; the cause" in fact.sentence


@pytest.mark.parametrize("is_at_end", [False, True])
@pytest.mark.parametrize("gap_s", [0.5, 2.0])
def test_a_recorded_collection_of_one_rank_at_a_time_costs_what_all_wait(is_at_end, gap_s):
    gaps_s = [0.0, *[gap_s] * 9]
    notes = [
        Row("gc-pause", BUSY_S, gap_s, step=step - 1, dp_rank=step % 2)
        if is_at_end
        else Row("gc-pause", -gap_s, gap_s, step=step, dp_rank=step % 2)
        for step in range(1, 10)
    ]
    made = by_hand(gaps_s, notes)
    seen = diagnosed(made)
    [found] = findings_of(seen)
    assert (found.cause, found.culprits, found.basis) == ("gc-pause", (), "recorded")
    assert found.persistence == "rotating"
    assert found.cost == pytest.approx(9 * gap_s / (10 * BUSY_S + 9 * gap_s), abs=0.005)
    assert "between steps" in found.sentence
    assert seen.observations == ()


def test_rare_collections_that_no_step_contains_cost_what_all_wait():
    # A gap of more than five times the usual one belongs to no step.
    gaps_s = [4.0 if step in (3, 6, 9, 12) else 0.0 for step in range(16)]
    notes = [Row("gc-pause", -4.0, 4.0, step=step, dp_rank=step % 2) for step in (3, 6, 9, 12)]
    seen = diagnosed(by_hand(gaps_s, notes))
    [found] = findings_of(seen)
    assert (found.cause, found.basis) == ("gc-pause", "recorded")
    assert found.cost == pytest.approx(16 / (16 * BUSY_S + 16), abs=0.01)
    assert seen.observations == ()
    suspected(GcPause(), case_of(by_hand(gaps_s, notes)))


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("gap_s", [0.1, 2.0])
def test_a_rank_of_any_stage_that_pauses_while_all_are_idle_is_to_blame(stage, gap_s):
    recorded = job(pp=3).record(range(8)).window()
    gapped = longer_gaps(recorded, every=1, gap_s=gap_s)
    step_s = sum(case_of(recorded).report.recorded_s)
    begin_s = {step: gapped.trace.start_s[gapped.trace.step == step].min() for step in range(8)}
    notes = [
        Row("gc-pause", begin_s[step] - gap_s, gap_s, step=step, dp_rank=2, stage=stage)
        for step in range(1, 8)
    ]
    noted = trace(notes, gapped.job.parallelism)
    columns = {
        name: np.concatenate([column, getattr(noted, name)])
        for name, column in gapped.trace.columns().items()
    }
    seen = diagnosed(replace(gapped, trace=type(noted)(**columns)))
    [found] = findings_of(seen)
    assert found.cause == "gc-pause"
    assert [(culprit.dp_rank, culprit.stage) for culprit in found.culprits] == [(2, stage)]
    assert found.cost == pytest.approx(7 * gap_s / (step_s + 7 * gap_s), abs=0.01)
    assert seen.observations == ()
