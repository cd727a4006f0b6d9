"""Rows 14 to 18 of the fault matrix: faults of PostgreSQL."""

import time
from functools import partial

import pytest

from app.api.http.caching import RETRY_STORE_S
from app.api.service.service import JOB_FRESH_S
from tests.harness.processes import wait_until
from tests.harness.trial import Trial

pytestmark = pytest.mark.nightly


@pytest.fixture
def database(stack):
    if stack.database is None:
        pytest.skip("no PostgreSQL server is installed: Debian's postgresql has one")
    return stack.database


def test_row_14_batches_accepted_without_a_database_are_analysed_later(stack, database, name):
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.kill, "database"))
        until_s = time.monotonic() + JOB_FRESH_S + RETRY_STORE_S
        while time.monotonic() < until_s:
            trial.wait_for_steps(8)
        database.start_and_wait()
        assert trial.finish()["violations"] == []


def test_row_15_commit_with_a_lost_answer_has_one_effect(stack, database, name):
    before = stack.to_database.dropped_answers
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.to_database.drop_answer_to, b"COMMIT", times=3))
        wait_until(lambda: stack.to_database.dropped_answers >= before + 3, "answers are lost")
        assert trial.finish()["violations"] == []


def test_row_16_killed_database_backend_loses_nothing(stack, database, name):
    with Trial(stack, name) as trial:
        trial.fault(lambda: wait_until(database.kill_backend, "a backend is killed"))
        trial.wait_for_steps(4)
        assert trial.finish()["violations"] == []


def test_row_18_commits_wait_for_a_locked_table_and_lose_nothing(stack, database, name):
    with Trial(stack, name) as trial:
        locked = "BEGIN; LOCK TABLE windows IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(4)"
        with database.session(locked) as session:
            trial.fault(lambda: None)
            trial.wait_for_steps(4)
            session.wait(30)
        assert trial.finish()["violations"] == []
