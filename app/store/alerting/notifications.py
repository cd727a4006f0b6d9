"""Notifications: when to look at an alert group, and the last notification of each alert.

A group is the alerts of one rule on one job. A change of an alert wakes its group. A dispatcher
claims the group, and `release` sets when it is due next. If the dispatcher dies, the claim lapses.
A wake-up during a claim is not lost: `release` then keeps the earlier time.

The last notification of an alert outlives the alert (`notified_alerts`). A receiver that was
added later is new to a group until it is sent something of it. A refresh repeats the firing
alerts every few minutes; delivered and outdated refreshes are deleted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, delete, func, or_, select, tuple_, update

from app.alerts.alert import Detail
from app.alerts.planning import LastNotified
from app.errors import LeaseLost
from app.store.alerting import deliveries
from app.store.alerting.alerts import MAX_SENTENCE, MAX_URL, clipped_labels, detail_json, row_of
from app.store.alerting.tables import alert_groups, alerts, endpoints, notified_alerts, outbox
from app.store.columns import clipped, clipped_or_none
from app.store.database import chunks, insert, insert_or_replace, rows_of_group
from app.store.projects import owns
from app.store.tables import fixes
from app.trace.job import job_of, project_of

_GROUPS = alert_groups
_GROUP_KEY = (_GROUPS.c.job_id, _GROUPS.c.rule)
# Clocks may be set back: limits how long a time from a clock ahead can delay a group.
MAX_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class AlertGroup:
    """One rule on one job, claimed; times are Unix seconds.

    `last_at_s` is when the last notification was written, `refreshed_at_s` when the last refresh
    was. Since `held_since_s` its messages wait for data to be processed. `num_claims`
    identifies the claim; `num_wakes` tells whether the group was woken since.
    """

    job_id: str
    rule: str
    last_at_s: float | None
    num_claims: int = 0
    num_wakes: int = 0
    refreshed_at_s: float | None = None
    held_since_s: float | None = None


def wake_group(conn: Connection, job_id: str, rule: str, *, at_s: float) -> None:
    """Make the group due at this time, unless it is due earlier."""
    statement = insert(conn, _GROUPS).values(
        job_id=job_id, rule=rule, next_at_s=at_s, lease_until_s=0.0, num_claims=0, num_wakes=1
    )
    conn.execute(statement.on_conflict_do_update(index_elements=_GROUP_KEY, set_=_woken(at_s)))


def wake_beside(conn: Connection, group: AlertGroup, rule: str, *, at_s: float) -> None:
    """Wake the group of another rule of the same job, before `group` is released."""
    _lock_groups(conn, _GROUPS.c.job_id == group.job_id, _GROUPS.c.rule.in_((group.rule, rule)))
    wake_group(conn, group.job_id, rule, at_s=at_s)


def wake_project(conn: Connection, project: str, at_s: float) -> None:
    """Wake a project's groups that have alerts, last notifications or outcomes to be notified."""
    due = select(fixes).where(fixes.c.job_id == _GROUPS.c.job_id, fixes.c.notice == "due")
    has_rows = (rows_of_group(table).exists() for table in (alerts, notified_alerts))
    keys = _lock_groups(conn, owns(project, _GROUPS.c.job_id), or_(*has_rows, due.exists()))
    for part in chunks(keys):
        conn.execute(update(_GROUPS).where(tuple_(*_GROUP_KEY).in_(part)).values(_woken(at_s)))


def _lock_groups(conn: Connection, *conditions: ColumnElement[bool]) -> list[tuple[Any, ...]]:
    """Lock groups in the order of their keys, as everywhere; returns the keys."""
    query = select(*_GROUP_KEY).where(*conditions).order_by(*_GROUP_KEY).with_for_update()
    return [tuple(row) for row in conn.execute(query)]


def claim_groups(conn: Connection, *, now_s: float, lease_s: float, limit: int) -> list[AlertGroup]:
    """Claim groups that are due, those that have waited longest first."""
    due = select(*_GROUP_KEY).where(_is_due(now_s)).order_by(_GROUPS.c.next_at_s, *_GROUP_KEY)
    due = due.limit(limit).with_for_update(skip_locked=True)
    keys = [tuple(row) for row in conn.execute(due)]
    claimed = update(_GROUPS).where(tuple_(*_GROUP_KEY).in_(keys))
    # Due again when the claim lapses, unless released before.
    lease = {"lease_until_s": now_s + lease_s, "next_at_s": now_s + lease_s}
    claimed = claimed.values(**lease, num_claims=_GROUPS.c.num_claims + 1)
    columns = (_GROUPS.c[field.name] for field in fields(AlertGroup))
    rows = conn.execute(claimed.returning(*columns))
    groups = {(row.job_id, row.rule): AlertGroup(*row) for row in rows}
    return [groups[key] for key in keys]


def release(
    conn: Connection,
    group: AlertGroup,
    *,
    next_at_s: float | None,
    last_at_s: float | None,
    refreshed_at_s: float | None = None,
    held_since_s: float | None = None,
) -> None:
    """Release a claimed group; it is due again at `next_at_s`, or when it is woken.

    `last_at_s` is when a notification was written, None if none was. Since `held_since_s` its
    messages wait.

    Raises:
        LeaseLost: another dispatcher has claimed it since: commit nothing.
    """
    is_quiet = _GROUPS.c.num_wakes == group.num_wakes
    woken = _GROUPS.c.next_at_s if next_at_s is None else _earlier(next_at_s)
    claim = {"job_id": group.job_id, "rule": group.rule, "num_claims": group.num_claims}
    settled = update(_GROUPS).filter_by(**claim)
    settled = settled.values(
        next_at_s=case((is_quiet, next_at_s), else_=woken),
        lease_until_s=0.0,
        last_at_s=_GROUPS.c.last_at_s if last_at_s is None else last_at_s,
        refreshed_at_s=refreshed_at_s,
        held_since_s=held_since_s,
    )
    if not conn.execute(settled).rowcount:
        raise LeaseLost(f"another dispatcher has the alerts of job {job_of(group.job_id)!r} now")


def clear_last_notified(conn: Connection, job_id: str, rule: str, *, at_s: float) -> None:
    """Forget that a notification was written at this time: the next one need not wait."""
    notified_then = update(_GROUPS).filter_by(job_id=job_id, rule=rule, last_at_s=at_s)
    conn.execute(notified_then.values(last_at_s=None))


def postpone_group(conn: Connection, group: AlertGroup, *, next_at_s: float) -> None:
    """Release a claimed group that could not be planned; it is due again at `next_at_s`.

    Nothing changes if the claim has been lost, released, or its row is locked.
    """
    claim = {"job_id": group.job_id, "rule": group.rule, "num_claims": group.num_claims}
    held = select(*_GROUP_KEY).filter_by(**claim).where(_GROUPS.c.lease_until_s > 0)
    keys = [tuple(row) for row in conn.execute(held.with_for_update(skip_locked=True))]
    conn.execute(update(_GROUPS).where(tuple_(*_GROUP_KEY).in_(keys)).values(next_at_s=next_at_s))


def has_due_group(conn: Connection, *, now_s: float) -> bool:
    """Whether there is something to claim; works in a read transaction."""
    return bool(conn.scalar(select(select(_GROUPS).where(_is_due(now_s)).exists())))


def next_due_s(conn: Connection, *, now_s: float) -> float | None:
    """When (Unix time) the next unclaimed group is due; None if none is."""
    free = _GROUPS.c.lease_until_s <= now_s
    due_s: float | None = conn.scalar(select(func.min(_GROUPS.c.next_at_s)).where(free))
    return due_s


def limit_wait(next_at_s: float | None, *, now_s: float) -> float | None:
    """Limit the time for `release`: a group with pending changes is planned at least hourly."""
    return None if next_at_s is None else min(next_at_s, now_s + MAX_WAIT_S)


def _is_due(now_s: float) -> ColumnElement[bool]:
    """Due and unclaimed; a time too far ahead is from before the clock was set back."""
    next_at_s, lease_until_s = _GROUPS.c.next_at_s, _GROUPS.c.lease_until_s
    is_due = or_(next_at_s <= now_s, next_at_s > now_s + 2 * MAX_WAIT_S)
    return is_due & or_(lease_until_s <= now_s, lease_until_s > now_s + MAX_WAIT_S)


def _woken(at_s: float) -> dict[str, ColumnElement[Any]]:
    return {"next_at_s": _earlier(at_s), "num_wakes": _GROUPS.c.num_wakes + 1}


def _earlier(at_s: float) -> ColumnElement[Any]:
    return case((_GROUPS.c.next_at_s <= at_s, _GROUPS.c.next_at_s), else_=at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastNotification(LastNotified):
    """The last notification of an alert, and the alert's state then; times are Unix seconds.

    `known_as` are the labels of its first notification, written at `first_at_s`.
    """

    event_id: int
    starts_at_s: float
    sentence: str
    detail: Detail = field(default_factory=Detail)
    labels: Mapping[str, str] = field(default_factory=dict)
    threshold: float | None = None
    runbook_url: str | None = None
    known_as: Mapping[str, str] = field(default_factory=dict)
    first_at_s: float = 0.0

    @property
    def is_at_rest(self) -> bool:
        """Whether receivers take the alert for resolved."""
        return self.kind in ("resolved", "lapsed")


_NOTIFIED = notified_alerts
_NOTIFIED_COLUMNS = tuple(_NOTIFIED.c[field.name] for field in fields(LastNotification))


def last_notifications(conn: Connection, job_id: str, rule: str) -> dict[str, LastNotification]:
    """The last notification of each alert of one rule on a job, by fingerprint."""
    query = select(_NOTIFIED.c.fingerprint, *_NOTIFIED_COLUMNS).filter_by(job_id=job_id, rule=rule)
    rows = (dict(row._mapping) for row in conn.execute(query))
    return {row.pop("fingerprint"): LastNotification(**row) for row in rows}


def save_notifications(
    conn: Connection, job_id: str, rule: str, rows: Mapping[str, LastNotification]
) -> None:
    """Save the last notifications of these alerts, by fingerprint."""
    values = [
        row_of(
            notification,
            _NOTIFIED_COLUMNS,
            fingerprint=fingerprint,
            job_id=job_id,
            rule=rule,
            sentence=clipped(notification.sentence, MAX_SENTENCE),
            detail=detail_json(notification.detail),
            labels=clipped_labels(notification.labels),
            known_as=clipped_labels(notification.known_as),
            runbook_url=clipped_or_none(notification.runbook_url, MAX_URL),
        )
        for fingerprint, notification in sorted(rows.items())
    ]
    insert_or_replace(conn, _NOTIFIED, values)


def forget_notifications(conn: Connection, fingerprints: Sequence[str]) -> None:
    """Delete the last notifications of these alerts."""
    if fingerprints:
        conn.execute(delete(_NOTIFIED).where(_NOTIFIED.c.fingerprint.in_(sorted(fingerprints))))


def mark_new_receiver(conn: Connection, endpoint_id: str, *, now_s: float) -> None:
    """Mark a receiver as new, or as changed, at this time."""
    conn.execute(update(endpoints).filter_by(endpoint_id=endpoint_id).values(anew_at_s=now_s))


def new_receivers(conn: Connection, job_id: str, rule: str, *, now_s: float) -> dict[str, float]:
    """When each receiver became new, of those that were sent nothing of this group since then."""
    last_sent = select(func.max(outbox.c.created_s)).where(
        outbox.c.job_id == job_id,
        outbox.c.rule == rule,
        outbox.c.endpoint_id == endpoints.c.endpoint_id,
    )
    # Not those from a clock that was set back: no message could be newer.
    project = endpoints.c.project
    query = select(endpoints.c.endpoint_id, endpoints.c.anew_at_s).where(
        or_(project == project_of(job_id), project.is_(None)),
        endpoints.c.anew_at_s <= now_s,
        func.coalesce(last_sent.scalar_subquery(), 0.0) < endpoints.c.anew_at_s,
    )
    return {row.endpoint_id: row.anew_at_s for row in conn.execute(query)}


def drop_refreshes(conn: Connection, endpoint_id: str, job_id: str, rule: str) -> None:
    """Delete delivered and outdated refreshes to a receiver; failed ones are kept for people."""
    refreshes = select(outbox.c.delivery_id).filter_by(
        endpoint_id=endpoint_id, job_id=job_id, rule=rule, kind="refresh"
    )
    is_done = outbox.c.state.in_(("delivered", "outdated"))
    if done := conn.scalars(refreshes.where(is_done)).all():
        deliveries.remove(conn, done)
