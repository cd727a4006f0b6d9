"""Endpoints that do not take what they are sent: when are they left alone, and when given up?"""

# So many failures in a row are no accident; then one message goes out each minute, to see.
FAILURES_TO_OPEN = 5
PROBE_EVERY_S = 60.0
# Who answers nothing good for a day is not there any more.
GIVEN_UP_AFTER_S = 24 * 3600.0
GONE = 410  # the receiver's word for wanting no more


def next_probe_s(failures: int, now_s: float) -> float | None:
    """When the endpoint may be tried again after so many failures in a row; None: at any time."""
    return now_s + PROBE_EVERY_S if failures >= FAILURES_TO_OPEN else None


def reason_to_disable(
    *, status: int | None, failures: int, failing_since_s: float | None, now_s: float
) -> str | None:
    """Why the endpoint, which has just failed with this status, gets no more; None: it does.

    `failures` are in a row: two that lie a day apart prove nothing.
    """
    if status == GONE:
        return "it answered 410: it wants no more"
    is_often = failures >= FAILURES_TO_OPEN
    if is_often and failing_since_s is not None and now_s - failing_since_s >= GIVEN_UP_AFTER_S:
        return "it has taken nothing for 24 hours"
    return None
