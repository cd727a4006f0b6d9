import pytest

from app.api.http.limits import FailureLimit
from app.errors import TooManyRequests
from tests.api.server import Clock


def test_failures_are_forgotten_after_a_minute():
    clock = Clock()
    limit = FailureLimit(clock, max_failures=2, within_s=60)
    limit.note("a")
    limit.note("a")
    with pytest.raises(TooManyRequests):
        limit.check("a")
    clock.now_s += 60
    limit.check("a")


def test_one_address_does_not_lock_another_out():
    limit = FailureLimit(Clock(), max_failures=1)
    limit.note("a")
    limit.check("b")


def test_refusal_has_the_seconds_to_wait():
    clock = Clock()
    limit = FailureLimit(clock, max_failures=1, within_s=60)
    limit.note("a")
    clock.now_s += 20
    with pytest.raises(TooManyRequests) as refused:
        limit.check("a")
    assert refused.value.retry_after_s == 41
