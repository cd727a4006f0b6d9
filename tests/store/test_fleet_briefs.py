"""Briefs: the window figures of a fleet line."""

import pytest

from app.result.brief import brief_of
from app.store import fleet, windows
from app.store.windows import StepRow
from tests.store.factories import register, window
from tests.store.findings import finding, result

JOB = "default/job"


def save(store, first_step, brief, **given):
    with store.write() as conn:
        windows.save(conn, JOB, window(first_step, **given))
        fleet.save_brief(conn, JOB, 1, first_step, brief)


def saved(store):
    with store.read() as conn:
        [line] = fleet.lines(conn, "default")
    return line.brief


def test_brief_has_the_figures_computed_by_hand():
    # (80 + 100) s on 4 GPUs are 720 GPU-seconds, 0.2 GPU-hours; 90 s a step.
    brief = brief_of(result(finding()), num_gpus=4)
    assert brief is not None
    assert brief.as_json() == {
        "slowdown": 1.25,
        "verdict": "ok",
        "first_step": 4,
        "last_step": 5,
        "num_steps": 2,
        "gpu_hours_lost": pytest.approx(0.04),
        "gpu_hours": pytest.approx(0.2),
        "step_s": 90.0,
        "discrepancy": 0.01,
        "ended_s": None,
        "clock_residual_ms": 0.4,
        "num_findings": 1,
        "findings": [
            {
                "cause": "slow-worker",
                "cost": 0.1,
                "confidence": 0.9,
                "culprits": [{"dp_rank": 1, "stage": 1, "host": "host-b"}],
                "num_culprits": 1,
                "onset_step": 4,
                "persistence": "chronic",
                "sentence": "dp 1, stage 1 on host-b is 1.6x slower than its peers",
                "onset_at": None,
                "ended_at": None,
            }
        ],
    }


def test_brief_keeps_three_findings_and_culprits_and_counts_all():
    many = finding(culprits=[{"dp_rank": each} for each in range(5)])
    brief = brief_of(result(*[many] * 4), num_gpus=4)
    assert brief is not None
    first, *others = brief.findings or ()
    assert (brief.num_findings, len(others)) == (4, 2)
    assert first.num_culprits == 5
    assert [culprit.dp_rank for culprit in first.culprits] == [0, 1, 2]


def test_window_without_figures_has_no_brief():
    assert brief_of(result(slowdown=None), num_gpus=4) is None


def test_onset_time_is_that_of_the_step_of_the_onset(store):
    register(store, JOB)
    brief = brief_of(result(finding(onset_step=5)), num_gpus=4)
    with store.write() as conn:
        rows = [
            StepRow(1, step, 1.0, 1.0, 1.0, 1.0, "1-4", started_s=100.0 + step) for step in (4, 5)
        ]
        windows.save_steps(conn, JOB, rows)
    save(store, 8, brief, last_step=11, updated_s=300.0)
    assert saved(store).onset_at_s == 105.0


def test_newer_revision_without_figures_removes_the_brief(store):
    register(store, JOB)
    save(store, 0, brief_of(result(finding()), num_gpus=4))
    save(store, 0, brief_of(result(), num_gpus=4), revision=2)
    assert saved(store).findings == ()
    save(store, 0, None, revision=3)
    assert saved(store) is None
