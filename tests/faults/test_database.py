"""Rows 14 to 18 of the fault matrix: trouble with PostgreSQL."""

import time
from functools import partial

import pytest

from app.api.http.caching import RETRY_STORE_S
from app.api.service.registrations import FRESH_S
from tests.harness.processes import wait_until
from tests.harness.trial import Trial


@pytest.fixture
def database(stack):
    if stack.database is None:
        pytest.skip("no PostgreSQL server is installed: Debian's postgresql has one")
    return stack.database


def test_row_14_while_the_database_is_down_batches_are_taken_and_then_analysed(
    stack, database, name
):
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.kill, "database"))
        until_s = time.monotonic() + FRESH_S + RETRY_STORE_S
        while time.monotonic() < until_s:
            trial.flow(8)
        database.start_and_wait()
        assert trial.finish()["violations"] == []


def test_row_15_a_commit_whose_outcome_nobody_knows_has_one_effect(stack, database, name):
    fired = stack.to_database.fired
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.to_database.drop_answer_to, b"COMMIT", times=3))
        wait_until(lambda: stack.to_database.fired >= fired + 3, "answers are lost")
        assert trial.finish()["violations"] == []


def test_row_16_one_killed_backend_takes_all_connections_and_loses_nothing(stack, database, name):
    with Trial(stack, name) as trial:
        trial.fault(lambda: wait_until(database.kill_backend, "a backend is killed"))
        trial.flow(4)
        assert trial.finish()["violations"] == []


def test_row_18_a_locked_table_is_waited_for_and_loses_nothing(stack, database, name):
    with Trial(stack, name) as trial:
        locked = "BEGIN; LOCK TABLE windows IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(4)"
        with database.session(locked) as session:
            trial.fault(lambda: None)
            trial.flow(4)
            session.wait(30)
        assert trial.finish()["violations"] == []
