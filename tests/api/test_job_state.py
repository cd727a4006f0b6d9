from dataclasses import replace

import pytest

from app.api.job_state import Thresholds, job_state
from app.store.jobs import JobRecord
from app.store.windows import WindowSummary
from app.trace.job import Parallelism

NOW_S = 1_000.0
WINDOW = WindowSummary("1-0", 1, 0, 7, 3, "complete", 8, 1.2, "ok", NOW_S)
JOB = JobRecord(
    job_id="a",
    name="a",
    parallelism=Parallelism(1, 1),
    num_gpus=1,
    framework=None,
    labels={},
    epoch=1,
    run_key="r",
    registered_s=0.0,
    ended_s=None,
    last_data_s=NOW_S,
    last_step=7,
    latest=WINDOW,
)


def state(job, now_s=NOW_S):
    return job_state(job, now_s=now_s, thresholds=Thresholds(1.1, silent_after_s=300))


@pytest.mark.parametrize(
    ("slowdown", "expected"),
    [(1.0, "healthy"), (1.0999, "healthy"), (1.1, "straggling"), (9.0, "straggling")],
)
def test_a_job_straggles_from_the_threshold_on(slowdown, expected):
    assert state(replace(JOB, latest=replace(WINDOW, slowdown=slowdown))) == expected


def test_a_figure_that_cannot_be_trusted_is_said_to_be_so_first():
    assert state(replace(JOB, latest=replace(WINDOW, verdict="low"))) == "low-fidelity"


def test_a_job_is_silent_when_its_last_data_is_too_old():
    assert state(JOB, NOW_S + 300) == "straggling"
    assert state(JOB, NOW_S + 300.1) == "silent"


def test_a_job_never_heard_from_is_not_silent_but_not_analysed():
    assert state(replace(JOB, last_data_s=None, latest=None), NOW_S + 9e9) == "not-analysed"


def test_a_window_without_figures_is_not_analysed():
    unknown = replace(WINDOW, slowdown=None, verdict=None)
    assert state(replace(JOB, latest=unknown)) == "not-analysed"


def test_a_finished_job_stays_finished():
    assert state(replace(JOB, ended_s=NOW_S), NOW_S + 9e9) == "finished"
