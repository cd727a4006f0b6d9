from dataclasses import replace

import pytest

from app.api.service.job_state import (
    JobState,
    job_state,
    silent_for_s,
    state_since_s,
)
from app.store.as_of import BEHIND_AFTER_S, EVERY_JOB, Processed, Refusal
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


def processed(behind_s=0.0, refused=None):
    return Processed(NOW_S, [NOW_S - behind_s], refused or {})


def state(job, *known):
    return job_state(job, processed(*known), 1.1)


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


def test_what_is_not_processed_is_not_known():
    stalled, silent = replace(JOB, stalled_since_s=NOW_S), replace(JOB, silent_ranks=[3])
    for job in (JOB, stalled, silent, replace(JOB, last_data_s=None, latest=None, recent=None)):
        assert state(job, BEHIND_AFTER_S - 0.1) != "unknown"
        assert state(job, BEHIND_AFTER_S) == "unknown"
    assert state(replace(JOB, ended_s=NOW_S), 9e9) == "finished"


@pytest.mark.parametrize(
    ("last_s", "last_data_s", "is_unknown"),
    [
        (NOW_S - 1, NOW_S, True),  # others are refused just now
        (NOW_S - 30, NOW_S - 40, True),
        (NOW_S - 30, NOW_S - 20, False),  # taken since
    ],
)
def test_a_job_whose_pushes_are_refused_is_not_known(last_s, last_data_s, is_unknown):
    refused = {"a": Refusal(NOW_S - 90, last_s)}
    job = replace(JOB, last_data_s=last_data_s)
    assert (state(job, 0.0, refused) == "unknown") == is_unknown
    assert state(replace(job, job_id="b"), 0.0, refused) == "straggling"
    of_all = {EVERY_JOB: refused["a"]}
    assert state(replace(job, job_id="b"), 0.0, of_all) == state(job, 0.0, refused)


def test_state_has_its_start_if_known():
    job = replace(JOB, silent_since_s=1.0, stalled_since_s=2.0)
    states: tuple[JobState, ...] = ("silent", "stalled", "unknown", "healthy")
    found = [state_since_s(job, state, processed(60.0)) for state in states]
    assert found == [1.0, 2.0, NOW_S - 60.0, None]


def test_a_window_without_figures_is_not_analysed():
    unknown = replace(WINDOW, slowdown=None, verdict=None)
    assert state(replace(JOB, latest=unknown, recent=None)) == "not-analysed"


def test_a_finished_job_stays_finished():
    job = replace(JOB, ended_s=NOW_S, stalled_since_s=NOW_S, silent_ranks=[3])
    assert state(job, 9e9) == "finished"
