from dataclasses import replace

import pytest

from app.api.service.job_state import StateThresholds, job_state, silent_for_s, state_since_s
from app.store.jobs import JobRecord
from app.store.windows import RecentSummary, WindowSummary
from app.trace.job import Parallelism

NOW_S = 1_000.0
WINDOW = WindowSummary("1-0", 1, 0, 7, 3, "complete", 8, 1.2, "ok", NOW_S)
JUDGED = RecentSummary(0, 7, 8, 1.2, "ok", is_open=False)
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
    recent=JUDGED,
)


def state(job, now_s=NOW_S, *, is_watched=True):
    thresholds = StateThresholds(1.1, silent_after_s=300)
    return job_state(job, now_s=now_s, thresholds=thresholds, is_watched=is_watched)


@pytest.mark.parametrize(
    ("slowdown", "expected"),
    [(1.0, "healthy"), (1.0999, "healthy"), (1.1, "straggling"), (9.0, "straggling")],
)
def test_a_job_straggles_from_the_threshold_on(slowdown, expected):
    assert state(replace(JOB, recent=JUDGED._replace(slowdown=slowdown))) == expected


def test_low_fidelity_takes_precedence_over_straggling():
    assert state(replace(JOB, recent=JUDGED._replace(verdict="low"))) == "low-fidelity"


def test_job_with_silent_ranks_is_silent():
    assert state(replace(JOB, silent_ranks=[3])) == "silent"
    assert state(replace(JOB, silent_ranks=[])) == "straggling"


def test_job_without_sending_ranks_is_stalled():
    assert state(replace(JOB, stalled_since_s=NOW_S, silent_ranks=[3])) == "stalled"


def test_job_stalled_before_its_first_data_is_silent_since_registration():
    job = replace(JOB, last_data_s=None, latest=None, recent=None, stalled_since_s=NOW_S - 60)
    assert state(job) == "stalled"
    assert silent_for_s(job, NOW_S) == 60


def test_old_data_is_not_stale_while_a_consumer_is_alive():
    assert state(JOB, NOW_S + 9e9) == "straggling"


def test_old_data_is_stale_without_a_consumer():
    for job in (JOB, replace(JOB, silent_ranks=[3]), replace(JOB, stalled_since_s=NOW_S)):
        assert state(job, NOW_S + 300, is_watched=False) != "stale"
        assert state(job, NOW_S + 300.1, is_watched=False) == "stale"


@pytest.mark.parametrize("is_watched", [True, False])
def test_job_without_data_is_not_analysed(is_watched):
    job = replace(JOB, last_data_s=None, latest=None, recent=None)
    assert state(job, NOW_S + 9e9, is_watched=is_watched) == "not-analysed"


def test_state_has_its_start_if_known():
    job = replace(JOB, silent_since_s=1.0, stalled_since_s=2.0, last_data_s=3.0)
    assert [state_since_s(job, state) for state in ("silent", "stalled", "stale")] == [
        1.0,
        2.0,
        3.0,
    ]
    assert state_since_s(job, "healthy") is None


def test_a_window_without_figures_is_not_analysed():
    unknown = replace(WINDOW, slowdown=None, verdict=None)
    assert state(replace(JOB, latest=unknown, recent=None)) == "not-analysed"


def test_a_finished_job_stays_finished():
    job = replace(JOB, ended_s=NOW_S, stalled_since_s=NOW_S, silent_ranks=[3])
    assert state(job, NOW_S + 9e9, is_watched=False) == "finished"
