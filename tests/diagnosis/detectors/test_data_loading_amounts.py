"""Waits that clients report: every loader takes some time, and the amounts tell whose matter."""

import dataclasses

import numpy as np
import pytest

from app.diagnosis.detectors.data_loading import DataLoading
from app.diagnosis.evidence.data_waits import data_waits
from app.trace.ops import OP_CODES
from app.trace.window import Window
from tests import window_factory
from tests.diagnosis.jobs import case_of, diagnosed, only_finding
from tests.diagnosis.late_jobs import HEALTHY_S, LateJob
from tests.diagnosis.suspects import denied, fact_of, suspected
from tests.window_factory import Row, in_row, rows_of, window

LOAD = DataLoading()
LATE = 2
LATE_S = 0.08
NUM_STEPS = 12


def usual(seconds: float = 0.004) -> dict[int, float]:
    return {rank: seconds * (1 + 0.1 * rank) for rank in range(8)}


def loading(seconds, *, between=False, num_steps=NUM_STEPS):
    """Two ranks that compute for 0.3 s; `seconds(step, dp rank)` wait for data before.

    With `between` waits lie before the step's times, as with a loader between two steps.
    """
    rows, origins_ns, now_s = [], [], 0.0
    for step in range(num_steps):
        waits_s = [seconds(step, rank) for rank in range(2)]
        origins_ns.append(round(now_s * 1e9))
        ends_s = []
        for rank, wait_s in enumerate(waits_s):
            computed = in_row(("forward-compute", 0.1), ("backward-compute", 0.2), start_s=wait_s)
            made = [Row("data-wait", 0.0, wait_s), *computed]
            rows += [row.on(step=step, dp_rank=rank, mb_id=0) for row in made]
            ends_s.append(wait_s + 0.3)
        done_s = max(ends_s) + 0.01
        for rank, end_s in enumerate(ends_s):
            reduced = Row("grads-reduce-scatter", end_s, done_s - end_s)
            rows += [each.on(step=step, dp_rank=rank)
                     for each in (reduced, Row("optimizer", done_s, 0.01))]  # fmt: skip
        now_s += done_s + 0.01
    found = window(rows, dp_size=2)
    return found if between else dataclasses.replace(found, origin_ns=tuple(origins_ns))


def unreported(made: Window) -> Window:
    return rows_of(made, np.flatnonzero(made.trace.optype != OP_CODES["data-wait"]))


def test_one_rank_is_named_where_every_loader_takes_some_time():
    found = only_finding(diagnosed(LateJob(data_s=usual() | {LATE: LATE_S}).window()))
    assert [each.rank for each in found.culprits] == [LATE]
    assert found.cost == pytest.approx((LATE_S - 0.004) / (HEALTHY_S + LATE_S), abs=0.01)


def test_loaders_that_take_little_time_are_no_cause():
    found = diagnosed(LateJob(data_s=usual(0.006)).window())
    assert found.findings == ()


@pytest.mark.parametrize("every", [2, 4])
def test_only_steps_with_long_waits_are_counted(every):
    case = case_of(loading(lambda step, rank: 0.2 if rank and step % every == 0 else 0.005))
    found = suspected(LOAD, case)
    assert [each.dp_rank for each in found.culprits] == [1]
    assert found.evidence["steps"] == list(range(0, NUM_STEPS, every))
    # What all wait holds up everybody.
    assert found.evidence["longest_wait_s"] == pytest.approx(0.195)


@pytest.mark.parametrize("between", [False, True])
def test_a_wait_of_all_ranks_is_part_of_the_step(between):
    found = only_finding(diagnosed(loading(lambda step, rank: 0.1, between=between)))
    assert (found.cause, found.culprits) == ("data-loading", ())
    assert found.cost == pytest.approx(0.1 / 0.42, abs=0.02)


def test_waits_of_a_different_rank_in_each_step_have_no_culprit():
    found = suspected(LOAD, case_of(loading(lambda step, rank: 0.2 if rank == step % 2 else 0.005)))
    assert (found.culprits, found.onset.persistence) == ((), "rotating")
    assert fact_of(found).startswith("2 different workers")


def test_waits_that_delay_no_launch_are_no_cause():
    # The first forward starts as soon as the parameters are gathered, which takes longer.
    rows = [
        row.on(step=step, dp_rank=rank, mb_id=0)
        for step in range(NUM_STEPS)
        for rank in range(2)
        for row in (
            Row("data-wait", 0.0, 0.2 * rank),
            Row("params-all-gather", 0.0, 0.3),
            *in_row(("forward-compute", 0.1), ("backward-compute", 0.2), start_s=0.3),
        )
    ]
    answer = denied(LOAD, case_of(window(rows, dp_size=2)))
    assert "the client reports waits for data" in answer.reason


def test_a_wait_before_the_gather_counts_like_one_before_the_forward():
    rows = []
    for step in range(NUM_STEPS):
        for rank, wait_s in enumerate((0.0, 0.2)):
            made = [
                Row("data-wait", 0.0, wait_s + 1e-3),
                Row("params-all-gather", wait_s + 1e-3, 0.21 - wait_s),
                *in_row(("forward-compute", 0.1), ("backward-compute", 0.2), start_s=0.211),
            ]
            rows += [row.on(step=step, dp_rank=rank, mb_id=0) for row in made]
    waits = data_waits(case_of(window(rows, dp_size=2)))
    assert waits.waits.ravel().tolist() == [False, True]
    np.testing.assert_allclose(waits.wait_s[:, 1, 0], 0.2, atol=1e-9)


@pytest.mark.parametrize("every", [2, 4])
def test_late_begins_of_all_ranks_without_reports_cannot_be_told(every):
    made = loading(lambda step, rank: 0.2 * (step % every == every - 1), num_steps=16)
    answer = denied(LOAD, case_of(unreported(made)))
    assert answer.insufficient
    assert "all workers are idle for" in answer.reason


def test_reported_pauses_before_the_first_forward_are_garbage_collection():
    made = unreported(loading(lambda step, rank: 0.2 * rank))
    notes = [Row("gc-pause", 0.0, 0.2, dp_rank=1, step=step) for step in made.steps]
    noted = window_factory.trace(notes, made.job.parallelism)
    columns = {
        name: np.concatenate([column, getattr(noted, name)])
        for name, column in made.trace.columns().items()
    }
    seen = diagnosed(dataclasses.replace(made, trace=type(noted)(**columns)))
    found = only_finding(seen)
    assert (found.cause, found.culprits[0].dp_rank) == ("gc-pause", 1)
    assert found.cost == pytest.approx(0.2 / 0.52, abs=0.02)
    # Without reports the same late begins look like waits for data.
    assert only_finding(diagnosed(made)).cause == "data-loading"


@pytest.mark.parametrize("steps", [(6,), (6, 7)])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_wait_as_long_as_a_step_is_a_stop_of_the_loader_in_however_few_steps(steps, seconds):
    made = loading(lambda step, rank: seconds if rank and step in steps else 0.005)
    found = only_finding(diagnosed(made))
    assert (found.cause, found.basis) == ("data-loading", "recorded")
    assert [culprit.dp_rank for culprit in found.culprits] == [1]
    assert found.evidence["steps"] == [*steps]
    assert (found.onset_step, found.end_step, found.persistence) == (6, steps[-1], "transient")
    when = "in step 6;" if len(steps) == 1 else "in steps 6 and 7;"
    assert f"for data before the first forward computation {when}" in found.sentence
    lost_s = len(steps) * (seconds - 0.005)
    assert found.cost == pytest.approx(lost_s / (NUM_STEPS * 0.325 + lost_s), abs=0.02)
