"""The outbox: messages to receivers, written in the transaction that causes them.

A delivery is due until it is delivered, failed for good, silenced, or outdated. A sender claims
it for a limited time. If the sender dies, the claim lapses, and the message is sent again under
the same id.

Order: a message about an alert must not reach a receiver after a newer one about the same alert.
Messages about different alerts do not wait for one another, so that a refused or retried message
delays no other. A receiver that keeps one incident for all alerts of a rule on a job gets them
one after the other. Locked messages are skipped, not waited for.

Fairness: hanging receivers delay only their own project. Of the projects with due messages, the
one with the fewest attempts in flight is served first. The same holds at the receiver that all
projects share; among equals, the project with the fewest messages waiting there goes first.

Keys: a sender without the key of a receiver's secrets leaves its messages to others that have it,
or until the key is there. That counts neither as an attempt nor against the receiver.

Clocks: the database's clock may have been wrong and set back since. A time further ahead than
any time that is ever set counts as now.

Replay: receivers believe the last message. A message may be replayed only while it is still true
of its alerts: an old firing would open an incident again, and nothing would close it.
"""

import heapq
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, String, cast, func, select, true, update
from sqlalchemy.dialects.postgresql import JSONB

from app.alerts.notice import Message, Notice, NoticeKind
from app.alerts.receiver import FORMATS_WITH_ONE_INCIDENT, LONGEST_DELAY_S, PROBE_EVERY_S
from app.errors import Conflict
from app.store import runs
from app.store.alerting import deliveries
from app.store.alerting.deliveries import MAX_DETAIL, DeliveryRecord
from app.store.alerting.tables import alerts, endpoints, outbox
from app.store.columns import clipped, clipped_or_none
from app.store.credentials.sealing import may_open
from app.store.database import insert

_MAX_SUBJECT = 500
_MAX_BODY = 1 << 20  # far above what a format makes


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one receiver; `attempt` counts from 1, `delivery_id` stays the same.

    `job_id` and `rule` are None for a message about no alert. `created_s` (Unix time) is when it
    was written; its alerts count as notified from then on.
    """

    delivery_id: str
    endpoint_id: str
    job_id: str | None
    rule: str | None
    kind: NoticeKind
    payload: str
    content_type: str
    headers: Mapping[str, str]
    subject: str | None
    fingerprints: Sequence[str]
    attempt: int
    created_s: float


_COLUMNS = tuple(outbox.c[field.name] for field in fields(Delivery))


def add(
    conn: Connection, notice: Notice, message: Message, endpoint_id: str, job_id: str | None
) -> str | None:
    """Add the message of a notice, of a job or of none, to a receiver.

    Returns its delivery id, None if the receiver has this notice already.
    """
    now_s, rule = notice.at_s, notice.rule
    statement = insert(conn, outbox).values(
        delivery_id=f"msg_{uuid.uuid4().hex}",
        endpoint_id=endpoint_id,
        notice_id=notice.notice_id,
        project=notice.project,
        job_id=job_id,
        rule=rule,
        kind=notice.kind,
        fingerprints=list(notice.about),
        listed=sorted({*notice.about, *(alert.fingerprint for alert in notice.alerts)}),
        payload=clipped(message.body, _MAX_BODY),
        content_type=message.content_type,
        headers=dict(message.headers),
        subject=clipped_or_none(message.subject, _MAX_SUBJECT),
        state="due",
        attempt=0,
        next_at_s=now_s,
        lease_until_s=0.0,
        created_s=now_s,
    )
    new = statement.on_conflict_do_nothing().returning(outbox.c.delivery_id)
    delivery_id: str | None = conn.execute(new).scalar_one_or_none()
    _drop_outdated(conn, endpoint_id, job_id, rule, now_s=now_s)
    if delivery_id is not None:
        _expedite(conn, endpoint_id, job_id, rule, set(notice.about), now_s=now_s)
    return delivery_id


def has_due(conn: Connection, *, now_s: float, kinds: Collection[NoticeKind] | None = None) -> bool:
    """Whether there may be something to claim, of these kinds; works in a read transaction."""
    due = select(outbox).where(_is_claimable(now_s), _is_of(kinds))
    due = due.where(~_lacks_key(conn) | _lacks_reason(now_s))
    return bool(conn.scalar(select(due.exists())))


def claim(
    conn: Connection,
    *,
    now_s: float,
    lease_s: float,
    limit: int,
    kinds: Collection[NoticeKind] | None = None,
) -> list[Delivery]:
    """Claim deliveries to attempt now, of these kinds, in order, for `lease_s`.

    At most MAX_PER_RECEIVER attempts are in flight at a receiver, one a minute at a failing one,
    and MAX_PER_PROJECT at all receivers of a project. Projects take turns. Messages to receivers
    whose key is not here are left out; those to disabled or removed receivers fail here.
    """
    _fail_undeliverable(conn, now_s=now_s)
    chosen = _choose(conn, now_s=now_s, limit=limit, kinds=kinds)
    claim = update(outbox).where(outbox.c.seq.in_(chosen))
    claim = claim.values(attempt=outbox.c.attempt + 1, lease_until_s=now_s + lease_s)
    claimed = conn.execute(claim.returning(outbox.c.seq, *_COLUMNS)).all()
    return [Delivery(*row[1:]) for row in sorted(claimed, key=lambda row: row.seq)]


def note_why_waiting(conn: Connection, endpoint_id: str, reason: str, *, now_s: float) -> int:
    """Save why a receiver's messages wait, if no reason is saved yet; returns their number."""
    waiting = select(outbox.c.seq).filter_by(endpoint_id=endpoint_id, state="due")
    waiting = waiting.where(_lacks_reason(now_s)).limit(_MAX_NOTED_AT_ONCE)
    seqs = conn.scalars(waiting).all()
    return _update_idle(conn, seqs, now_s=now_s, detail=clipped(reason, MAX_DETAIL))


def drop_notice(
    conn: Connection,
    notice_id: str,
    *,
    now_s: float,
    endpoint_ids: Collection[str] | None = None,
) -> None:
    """Drop the due messages of a notice that is no longer true, and of its repetitions.

    With `endpoint_ids`, to these receivers only. Messages that a sender has claimed are sent.
    """
    is_of_notice = outbox.c.notice_id.startswith(notice_id, autoescape=True)
    dropped = update(outbox).where(is_of_notice, outbox.c.state == "due", _is_idle(now_s))
    if endpoint_ids is not None:
        dropped = dropped.where(outbox.c.endpoint_id.in_(endpoint_ids))
    dropped = dropped.values(state="outdated", done_s=now_s)
    runs.count_deliveries(conn, "outdated", conn.execute(dropped).rowcount)


def receivers_tried(conn: Connection, notice_id: str) -> set[str]:
    """Ids of the receivers to which it was sent, or a repetition of it.

    They may know of it, though the attempt failed.
    """
    is_of_notice = outbox.c.notice_id.startswith(notice_id, autoescape=True)
    return set(conn.scalars(select(outbox.c.endpoint_id).where(is_of_notice, outbox.c.attempt > 0)))


def mark_delivered(conn: Connection, delivery: Delivery, *, now_s: float) -> None:
    """Mark as delivered; earlier failed messages to the receiver are retried soon."""
    _finish(conn, delivery, "delivered", now_s)
    pull_forward(conn, delivery.endpoint_id, now_s=now_s)


def mark_silenced(conn: Connection, delivery: Delivery, *, now_s: float) -> None:
    """Mark as silenced: all its alerts were silenced since it was written."""
    _finish(conn, delivery, "silenced", now_s)


def _finish(
    conn: Connection, delivery: Delivery, state: Literal["delivered", "silenced"], now_s: float
) -> None:
    finished = _update_claimed(delivery).values(state=state, detail=None, done_s=now_s)
    runs.count_deliveries(conn, state, conn.execute(finished).rowcount)


def mark_failed(
    conn: Connection, delivery: Delivery, *, detail: str, next_at_s: float | None, now_s: float
) -> None:
    """Note a failed attempt; the next one is at `next_at_s`, None if there is none."""
    again = next_at_s is not None
    failed = _update_claimed(delivery).values(
        state="due" if again else "failed",
        detail=clipped(detail, MAX_DETAIL),
        next_at_s=next_at_s if again else now_s,
        lease_until_s=0.0,
        done_s=None if again else now_s,
    )
    runs.count_deliveries(conn, "retried" if again else "failed", conn.execute(failed).rowcount)
    _drop_outdated(conn, delivery.endpoint_id, delivery.job_id, delivery.rule, now_s=now_s)


def replay(conn: Connection, project: str, delivery_id: str, now_s: float) -> None:
    """Send a finished message again, under its old id and with all retries.

    Raises:
        DeliveryNotFound: the project has no such message.
        Conflict: it is still due, it is a test, its receiver is disabled or removed, or it is no
            longer true.
    """
    _check_replay(conn, deliveries.get(conn, project, delivery_id))
    done = update(outbox).where(outbox.c.delivery_id == delivery_id, outbox.c.state != "due")
    due = {"state": "due", "attempt": 0, "next_at_s": now_s, "lease_until_s": 0.0, "done_s": None}
    if not conn.execute(done.values(due)).rowcount:
        raise Conflict(f"delivery {delivery_id!r} is still due: it needs no replay")


def _update_claimed(delivery: Delivery) -> Any:
    # By the attempt, so that a sender whose claim has lapsed cannot change the next one.
    return update(outbox).where(
        outbox.c.delivery_id == delivery.delivery_id,
        outbox.c.attempt == delivery.attempt,
        outbox.c.state == "due",
    )


MAX_PER_RECEIVER = 2  # attempts in flight
# Attempts in flight at all receivers of a project; concurrent senders may exceed it by a few.
MAX_PER_PROJECT = 32
RECEIVER_DISABLED = "the receiver is disabled"
RECEIVER_REMOVED = "the receiver was removed"
_MAX_FAILED_AT_ONCE = 500
_MAX_NOTED_AT_ONCE = 500
# Another sender, with the key, has taken a message by then.
_NOTED_AFTER_S = 5.0
_AttemptsUnderWay = Counter[tuple[str, str]]  # attempts in flight, by receiver and project


def _choose(
    conn: Connection, *, now_s: float, limit: int, kinds: Collection[NoticeKind] | None
) -> list[int]:
    """The `seq` of deliveries to attempt now: projects take turns, each with its longest due first.

    Their receivers are locked until the transaction ends, so that no other sender chooses among
    their deliveries. A failing receiver gets one message a minute.
    """
    most = _max_attempts(conn, now_s, kinds)
    # Locked before counting, so that concurrent senders do not both find room.
    busy = _num_under_way(conn, now_s)
    ready = _within_limits(_candidates(conn, most, now_s, kinds), most, busy)
    chosen = _by_fair_turn(ready, busy, limit)
    receiver_ids = {row.endpoint_id for row in chosen}
    probed = update(endpoints).where(endpoints.c.endpoint_id.in_(receiver_ids))
    probed = probed.where(endpoints.c.probe_at_s.is_not(None))
    conn.execute(probed.values(probe_at_s=now_s + PROBE_EVERY_S))
    # Without those that others have locked.
    seqs = [row.seq for row in chosen]
    free = select(outbox.c.seq).where(outbox.c.seq.in_(seqs), _is_claimable(now_s))
    return list(conn.scalars(free.with_for_update(skip_locked=True)))


def _fail_undeliverable(conn: Connection, *, now_s: float) -> None:
    """Fail the messages to disabled or removed receivers; a person may replay them."""
    takes_some = select(endpoints.c.endpoint_id).where(endpoints.c.is_enabled)
    query = select(outbox.c.seq, outbox.c.endpoint_id).where(outbox.c.state == "due")
    query = query.where(_is_idle(now_s), outbox.c.endpoint_id.not_in(takes_some))
    query = query.order_by(outbox.c.seq).limit(_MAX_FAILED_AT_ONCE)
    lost = conn.execute(query.with_for_update(skip_locked=True)).all()
    if not lost:
        return
    known = set(conn.scalars(select(endpoints.c.endpoint_id)))
    for detail, seqs in (
        (RECEIVER_DISABLED, [row.seq for row in lost if row.endpoint_id in known]),
        (RECEIVER_REMOVED, [row.seq for row in lost if row.endpoint_id not in known]),
    ):
        failed = update(outbox).where(outbox.c.seq.in_(seqs), outbox.c.state == "due")
        failed = failed.values(state="failed", detail=detail, done_s=now_s)
        runs.count_deliveries(conn, "failed", conn.execute(failed).rowcount)


def _max_attempts(
    conn: Connection, now_s: float, kinds: Collection[NoticeKind] | None
) -> dict[str, int]:
    """Attempts allowed at each receiver with a due message; the receivers are locked."""
    has_due = select(outbox.c.seq).where(outbox.c.endpoint_id == endpoints.c.endpoint_id)
    query = select(endpoints.c.endpoint_id, endpoints.c.probe_at_s)
    has_due = has_due.where(_is_claimable(now_s), _is_of(kinds))
    # Locked with the rest: a rotation cannot change the key before the secrets are read.
    query = query.where(endpoints.c.is_enabled, has_due.exists())
    query = query.where(may_open(conn, endpoints.c.sealed))
    query = query.where(_receiver_is_ready(now_s)).order_by(endpoints.c.endpoint_id)
    rows = conn.execute(query.with_for_update(skip_locked=True))
    return {row.endpoint_id: MAX_PER_RECEIVER if row.probe_at_s is None else 1 for row in rows}


def _num_under_way(conn: Connection, now_s: float) -> _AttemptsUnderWay:
    key = (outbox.c.endpoint_id, outbox.c.project)
    query = select(*key, func.count()).where(outbox.c.state == "due", ~_is_idle(now_s))
    return Counter({(row[0], row[1]): row[2] for row in conn.execute(query.group_by(*key))})


def _candidates(
    conn: Connection,
    endpoint_ids: Collection[str],
    now_s: float,
    kinds: Collection[NoticeKind] | None,
) -> Sequence[Any]:
    """The first few messages of each project at each receiver, and how many wait there."""
    key = (outbox.c.endpoint_id, outbox.c.project)
    order = ((outbox.c.kind != "test").label("can_wait"), outbox.c.next_at_s, outbox.c.seq)
    place_in_line = func.row_number().over(partition_by=key, order_by=order).label("place_in_line")
    number = func.count().over(partition_by=key).label("num_waiting")
    ready = select(*key, *order, place_in_line, number)
    ready = ready.where(_is_claimable(now_s), _is_of(kinds))
    ready = ready.where(outbox.c.endpoint_id.in_(endpoint_ids), ~_waits_for_another(conn))
    first = ready.subquery()
    return conn.execute(select(first).where(first.c.place_in_line <= MAX_PER_RECEIVER)).all()


def _within_limits(
    candidates: Sequence[Any], most: Mapping[str, int], busy: _AttemptsUnderWay
) -> list[Any]:
    """As many as each receiver may have besides those in flight, in the order they are due."""

    def turn(row: Any) -> tuple[Any, ...]:
        nth = row.place_in_line + busy[row.endpoint_id, row.project]
        # A person waits for a test: it goes first at a failing receiver.
        return nth, row.can_wait, row.num_waiting, row.next_at_s, row.seq

    room = Counter(most)
    room.subtract(_sum_by(busy, 0))
    ready = []
    for row in sorted(candidates, key=turn):
        if room[row.endpoint_id] > 0:
            room[row.endpoint_id] -= 1
            ready.append(row)
    return sorted(ready, key=lambda row: (row.next_at_s, row.seq))


def _sum_by(busy: _AttemptsUnderWay, part: int) -> Counter[str]:
    """The counts summed by one part of their key."""
    sums: Counter[str] = Counter()
    for key, number in busy.items():
        sums[key[part]] += number
    return sums


def _by_fair_turn(ready: Sequence[Any], under_way: _AttemptsUnderWay, limit: int) -> list[Any]:
    """The first messages, each time of the project with the fewest attempts in flight."""
    busy = _sum_by(under_way, 1)
    waiting: dict[str, list[Any]] = defaultdict(list)
    for row in reversed(ready):
        waiting[row.project].append(row)
    turns = [_turn_order(rows, busy) for rows in waiting.values()]
    heapq.heapify(turns)
    chosen: list[Any] = []
    while turns and len(chosen) < limit and turns[0][0] < MAX_PER_PROJECT:
        project = heapq.heappop(turns)[-1]
        rows = waiting[project]
        chosen.append(rows.pop())
        busy[project] += 1
        if rows:
            heapq.heappush(turns, _turn_order(rows, busy))
    return chosen


def _turn_order(rows: Sequence[Any], busy: Counter[str]) -> tuple[int, float, int, str]:
    """Sort key of projects: attempts in flight, then when the next message is due."""
    first = rows[-1]
    return busy[first.project], first.next_at_s, first.seq, first.project


MAX_LEASE_S = 120.0


def _is_claimable(now_s: float) -> ColumnElement[bool]:
    """Whether a delivery is due and unclaimed."""
    return (
        (outbox.c.state == "due")
        & _is_past(outbox.c.next_at_s, now_s, LONGEST_DELAY_S)
        & (_is_idle(now_s))
    )


def _lacks_key(conn: Connection) -> ColumnElement[bool]:
    """Whether a delivery waits for a key that is not here."""
    locked = select(endpoints.c.endpoint_id).where(endpoints.c.is_enabled)
    locked = locked.where(~may_open(conn, endpoints.c.sealed))
    return outbox.c.endpoint_id.in_(locked)


def _lacks_reason(now_s: float) -> ColumnElement[bool]:
    """Whether a delivery has been due for a while, and does not say why."""
    return outbox.c.detail.is_(None) & (outbox.c.next_at_s <= now_s - _NOTED_AFTER_S)


def _is_of(kinds: Collection[NoticeKind] | None) -> ColumnElement[bool]:
    """Whether a delivery is of one of these kinds; None: of any."""
    return true() if kinds is None else outbox.c.kind.in_(sorted(kinds))


def _is_idle(now_s: float) -> ColumnElement[bool]:
    """Whether no claim of it is valid."""
    return _is_past(outbox.c.lease_until_s, now_s, MAX_LEASE_S)


def _has_failed(now_s: float) -> ColumnElement[bool]:
    """Whether it was tried before, and is unclaimed."""
    return (outbox.c.attempt > 0) & _is_idle(now_s)


def _receiver_is_ready(now_s: float) -> ColumnElement[bool]:
    """Whether a receiver may be sent something now."""
    probe_at_s = endpoints.c.probe_at_s
    # It may have been set by a clock that was read a little later.
    return probe_at_s.is_(None) | _is_past(probe_at_s, now_s, 2 * PROBE_EVERY_S)


def _is_past(column: ColumnElement[float], now_s: float, most_s: float) -> ColumnElement[bool]:
    return (column <= now_s) | (column > now_s + most_s)


# These kinds give the state of alerts: they make older messages about the same alerts outdated.
_NEWS_KINDS = ("firing", "resolved")
# A refresh gives it too, but outdates only older refreshes: people see whether news was delivered.
_STATUS_KINDS = (*_NEWS_KINDS, "refresh")
# Failed messages are retried this soon after a success, not at once: one that is refused again
# and again while others are taken would use up its attempts within seconds.
AFTER_A_SUCCESS_S = 60.0


def _waits_for_another(conn: Connection) -> ColumnElement[bool]:
    """Whether a message must wait for an older due one about the same alerts."""
    before = outbox.alias("before")
    same = (before.c[name] == outbox.c[name] for name in ("job_id", "rule", "endpoint_id"))
    query = select(before.c.seq).where(*same, before.c.state == "due")
    query = query.where(before.c.seq < outbox.c.seq)
    shares = _have_common_text(conn, before.c.listed, outbox.c.fingerprints)
    has_incident = endpoints.c.format.in_(sorted(FORMATS_WITH_ONE_INCIDENT))
    with_incident = select(endpoints.c.endpoint_id).where(has_incident)
    return query.where(shares | outbox.c.endpoint_id.in_(with_incident)).exists()


def _drop_outdated(
    conn: Connection, endpoint_id: str, job_id: str | None, rule: str | None, *, now_s: float
) -> None:
    """Drop failed messages whose alerts are all covered by newer ones.

    Dropped too: untried messages to a failing receiver, or one whose key is not here, that are
    covered, so that it is not sent a firing which is over by then; and all but the newest refresh.
    """
    if job_id is None:
        return  # not about alerts
    waiting = _due_messages(conn, endpoint_id, job_id, rule, now_s)
    may_send = may_open(conn, endpoints.c.sealed).label("may_send")
    query = select(endpoints.c.format, endpoints.c.probe_at_s, may_send)
    receiver = conn.execute(query.where(endpoints.c.endpoint_id == endpoint_id)).one_or_none()
    keeps_one = receiver is not None and receiver.format in FORMATS_WITH_ONE_INCIDENT
    rests = receiver is not None and (receiver.probe_at_s is not None or not receiver.may_send)
    outdated = _outdated(waiting, keeps_one=keeps_one, rests=rests)
    number = _update_idle(conn, outdated, now_s=now_s, state="outdated", done_s=now_s)
    runs.count_deliveries(conn, "outdated", number)


def _expedite(
    conn: Connection,
    endpoint_id: str,
    job_id: str | None,
    rule: str | None,
    news: Set[str],
    *,
    now_s: float,
) -> None:
    """Restart the retries of failed messages that a new message waits for."""
    if job_id is None or not news:
        return
    waiting = _due_messages(conn, endpoint_id, job_id, rule, now_s)
    slow = [row.seq for row in waiting if row.has_failed and not news.isdisjoint(row.listed)]
    _update_idle(conn, slow, now_s=now_s, attempt=0, next_at_s=now_s)


def pull_forward(
    conn: Connection, endpoint_id: str, *, now_s: float, after_s: float = AFTER_A_SUCCESS_S
) -> None:
    """Retry failed messages to a receiver within `after_s`: it may work again.

    It has just taken a message; or a person asks for it, with 0.
    """
    soon_s = now_s + after_s
    late = select(outbox.c.seq).where(outbox.c.endpoint_id == endpoint_id, _has_failed(now_s))
    late = late.where(outbox.c.state == "due", outbox.c.next_at_s > soon_s)
    late = late.with_for_update(skip_locked=True)
    conn.execute(update(outbox).where(outbox.c.seq.in_(late)).values(next_at_s=soon_s))


def _due_messages(
    conn: Connection, endpoint_id: str, job_id: str, rule: str | None, now_s: float
) -> Sequence[Any]:
    """Due messages to a receiver about one rule on one job, newest first."""
    columns = (outbox.c.seq, outbox.c.kind, outbox.c.fingerprints, outbox.c.listed)
    is_idle, has_failed = _is_idle(now_s).label("is_idle"), _has_failed(now_s).label("has_failed")
    query = select(*columns, is_idle, has_failed)
    query = query.filter_by(endpoint_id=endpoint_id, job_id=job_id, rule=rule, state="due")
    return conn.execute(query.order_by(outbox.c.seq.desc())).all()


def _outdated(waiting: Sequence[Any], *, keeps_one: bool, rests: bool) -> list[int]:
    in_news: set[str] = set()  # alerts in newer news
    in_status: set[str] = set()  # alerts in newer news or refreshes
    outdated = []
    for row in waiting:
        is_refresh = row.kind == "refresh"
        newer = in_status if is_refresh else in_news
        is_covered = bool(newer) and (keeps_one or newer.issuperset(row.fingerprints))
        gives_way = row.has_failed or (row.is_idle and (is_refresh or rests))
        if gives_way and is_covered and row.fingerprints:
            outdated.append(row.seq)
            continue
        in_news.update(row.listed if row.kind in _NEWS_KINDS else ())
        in_status.update(row.listed if row.kind in _STATUS_KINDS else ())
    return outdated


def _update_idle(conn: Connection, seqs: Sequence[int], *, now_s: float, **values: Any) -> int:
    if not seqs:
        return 0
    idle = select(outbox.c.seq).where(outbox.c.seq.in_(seqs), outbox.c.state == "due")
    idle = idle.where(_is_idle(now_s)).order_by(outbox.c.seq).with_for_update(skip_locked=True)
    locked = conn.scalars(idle).all()
    return conn.execute(update(outbox).where(outbox.c.seq.in_(locked)).values(values)).rowcount


def _have_common_text(conn: Connection, one: Any, other: Any) -> ColumnElement[bool]:
    """Whether two columns with lists of texts have a text in common."""
    a, b = _elements(conn, one).alias("a"), _elements(conn, other).alias("b")
    both = select(a.c.value).select_from(a, b).where(a.c.value == b.c.value)
    return both.correlate(one.table, other.table).exists()


def _elements(conn: Connection, column: Any) -> Any:
    if conn.dialect.name == "sqlite":
        return func.json_each(column).table_valued("value")
    return func.jsonb_array_elements_text(cast(cast(column, String), JSONB)).table_valued("value")


def _check_replay(conn: Connection, record: DeliveryRecord) -> None:
    """Raises Conflict for a test, a disabled or removed receiver, or a message no longer true."""
    query = select(endpoints.c.is_enabled, endpoints.c.format)
    query = query.where(endpoints.c.endpoint_id == record.endpoint_id)
    endpoint = conn.execute(query).one_or_none()
    if endpoint is None or not endpoint.is_enabled:
        raise Conflict("its receiver is disabled or was removed: enable it first")
    keeps_one = endpoint.format in FORMATS_WITH_ONE_INCIDENT
    if record.kind == "test":
        raise Conflict("it is a test, about no alert: send a new one")
    if record.kind in ("firing", "refresh") and not _firing_alerts(conn, record, of_group=False):
        raise Conflict("none of its alerts is firing: sent again, it would open them anew")
    if record.kind == "resolved" and _firing_alerts(conn, record, of_group=keeps_one):
        raise Conflict("an alert that it resolves is firing: sent again, it would close it")
    if record.kind == "acknowledged":
        firing = _firing_alerts(conn, record, of_group=True)
        if not firing or any(alert.acked_at_s is None for alert in firing):
            raise Conflict("not all firing alerts are acknowledged: sent again, it would hush them")


def _firing_alerts(conn: Connection, record: DeliveryRecord, *, of_group: bool) -> Sequence[Any]:
    """Its alerts that fire now, or all of their rule on their job."""
    query = select(alerts.c.acked_at_s).where(alerts.c.phase == "firing")
    query = query.where(alerts.c.job_id == record.job_id, alerts.c.rule == record.rule)
    if not of_group:
        query = query.where(alerts.c.fingerprint.in_(record.fingerprints))
    return conn.execute(query).all()
