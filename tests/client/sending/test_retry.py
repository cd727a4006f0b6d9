"""Retry budget of a tenth of the requests; a broken circuit only probes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client.sending.retry import BREAK_AFTER_FAILURES, MAX_BUDGET, Backoff, RetryPolicy


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_retry_after_of_the_server_is_honoured(clock):
    attempts = RetryPolicy(Backoff(0.5, 30.0), clock)
    attempts.failed(retry_after_s=17.0)
    assert attempts.wait_s() == 17.0
    attempts.succeeded()
    assert not attempts.is_waiting


def test_broken_circuit_probes_rarely_until_a_success(clock):
    attempts = RetryPolicy(Backoff(0.5, 30.0), clock)
    for _ in range(BREAK_AFTER_FAILURES):
        attempts.failed()
    assert attempts.is_broken
    assert 15.0 <= attempts.wait_s() <= 30.0
    attempts.succeeded()
    assert not attempts.is_broken


@given(st.lists(st.booleans(), max_size=400))
def test_quick_retries_are_at_most_a_tenth_of_the_requests(outcomes):
    clock = Clock()
    attempts = RetryPolicy(Backoff(0.5, 30.0), clock)
    requests = quick_retries = 0
    is_new = True
    for ok in outcomes:
        if is_new:
            attempts.first()
            requests += 1
        if ok:
            attempts.succeeded()
        else:
            attempts.failed()
            quick_retries += attempts.wait_s() < 15.0
        clock.now_s += attempts.wait_s()
        is_new = ok
    assert quick_retries <= MAX_BUDGET + 0.1 * requests


def test_retry_budget_refills_with_new_requests(clock):
    attempts = RetryPolicy(Backoff(0.5, 1.0), clock)
    for _ in range(40):  # never so many in a row that the circuit breaks
        attempts.failed()
        attempts.succeeded()
    attempts.failed()
    assert attempts.wait_s() >= 0.5  # over budget: delayed like a probe
    attempts.succeeded()
    for _ in range(100):
        attempts.first()
    attempts.failed()
    assert attempts.wait_s() <= 0.5
