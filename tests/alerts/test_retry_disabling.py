import pytest

from app.alerts.receiver import FAILURES_TO_OPEN, reason_to_disable

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("status", "failing_since_s", "is_disabled"),
    [
        (500, 0.0, True),
        (500, 1.0, False),
        (None, 0.0, True),
        (410, DAY_S, True),
        (410, None, True),
        (404, None, False),
    ],
)
def test_an_endpoint_is_given_up_after_a_day_of_failures_or_at_its_own_word(
    status, failing_since_s, is_disabled
):
    reason = reason_to_disable(
        status=status, failures=FAILURES_TO_OPEN, failing_since_s=failing_since_s, now_s=DAY_S
    )
    assert (reason is not None) is is_disabled


def test_two_failures_a_day_apart_do_not_disable():
    few = FAILURES_TO_OPEN - 1
    assert reason_to_disable(status=503, failures=few, failing_since_s=0.0, now_s=DAY_S) is None
