"""When a failed delivery is tried again, and when a failing receiver is paused or disabled.

Retries are soon at first, since an alert is worthless after hours. After five failures in a row
a receiver gets one message a minute as a probe; after a day of failures it is disabled.
"""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Before the first attempt, the second and so on: ten attempts in about 22 hours.
RETRY_DELAYS_S = (0.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10800.0, 21600.0, 43200.0)
JITTER = 0.2
# For a receiver that is overloaded, or whose gateway timed out.
OVERLOADED_DELAY_S = 30.0
_MAX_RETRY_AFTER_S = 3600.0
# No next attempt is further ahead.
LONGEST_DELAY_S = max(RETRY_DELAYS_S) * (1 + JITTER)


def next_delay_s(
    attempt: int,
    rng: random.Random,
    *,
    retry_after_s: float | None = None,
    is_overloaded: bool = False,
) -> float | None:
    """Seconds from failed attempt number `attempt` (from 1) to the next; None after the last.

    The receiver's Retry-After counts between one and two times the usual delay, up to an hour.
    """
    if attempt >= len(RETRY_DELAYS_S):
        return None
    usual_s = RETRY_DELAYS_S[attempt]
    delay_s = usual_s * rng.uniform(1 - JITTER, 1 + JITTER)
    if retry_after_s is not None:
        most_s = max(usual_s, min(2 * usual_s, _MAX_RETRY_AFTER_S))
        delay_s = min(max(retry_after_s, usual_s), most_s)
    return max(delay_s, OVERLOADED_DELAY_S) if is_overloaded else delay_s


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None if neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:12]), _MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now_s, UTC)).total_seconds())


# After so many failures in a row, one message a minute is sent as a probe.
FAILURES_TO_OPEN = 5
PROBE_EVERY_S = 60.0
# A receiver that fails for this long is disabled.
DISABLE_AFTER_S = 24 * 3600.0
GONE_STATUS = 410  # the receiver asks for no more messages


def next_probe_s(failures: int, now_s: float) -> float | None:
    """When to try the receiver again after so many failures in a row; None: at any time."""
    return now_s + PROBE_EVERY_S if failures >= FAILURES_TO_OPEN else None


def reason_to_disable(
    *, status: int | None, failures: int, failing_since_s: float | None, now_s: float
) -> str | None:
    """Why to disable the receiver that has just failed with this status; None: keep it.

    `failures` are in a row.
    """
    if status == GONE_STATUS:
        return "it answered 410 Gone"
    is_often = failures >= FAILURES_TO_OPEN
    if is_often and failing_since_s is not None and now_s - failing_since_s >= DISABLE_AFTER_S:
        return "every delivery has failed for 24 hours"
    return None
