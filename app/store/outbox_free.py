"""Whether a message may be claimed, by the database's clock.

That clock may have been wrong and set back since: what lies further ahead than anything is ever
set to counts as if it were now.
"""

from sqlalchemy import ColumnElement, or_

from app.alerts.breaker import PROBE_EVERY_S
from app.alerts.retry import LONGEST_DELAY_S
from app.store.alert_tables import endpoints, outbox

LONGEST_LEASE_S = 120.0


def is_free(now_s: float) -> ColumnElement[bool]:
    """Whether a delivery is due and nobody is at it."""
    return (
        (outbox.c.state == "due")
        & _is_past(outbox.c.next_at_s, now_s, LONGEST_DELAY_S)
        & (is_idle(now_s))
    )


def is_idle(now_s: float) -> ColumnElement[bool]:
    """Whether nobody is at it."""
    return _is_past(outbox.c.lease_until_s, now_s, LONGEST_LEASE_S)


def has_failed(now_s: float) -> ColumnElement[bool]:
    """Whether it was tried before, and nobody is at it."""
    return (outbox.c.attempt > 0) & is_idle(now_s)


def may_be_tried(now_s: float) -> ColumnElement[bool]:
    """Whether an endpoint is not to be left alone."""
    probe_at_s = endpoints.c.probe_at_s
    # Whoever set it may have read the clock a little later than we did.
    return or_(probe_at_s.is_(None), _is_past(probe_at_s, now_s, 2 * PROBE_EVERY_S))


def _is_past(column: ColumnElement[float], now_s: float, most_s: float) -> ColumnElement[bool]:
    return or_(column <= now_s, column > now_s + most_s)
