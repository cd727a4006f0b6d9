"""In what order an endpoint hears of alerts, and which messages newer ones make needless.

What a message says of an alert must not reach an endpoint after something newer that is said of
the same alert. News of other alerts wait for nothing: a message that is refused, or is tried again
hours later, keeps nobody from hearing of what has begun since. An endpoint that keeps one incident
for all alerts of a rule on a job hears of them one after the other.

Nobody waits here for a message that somebody else has locked: whoever has it decides about it.
"""

from collections.abc import Sequence, Set
from typing import Any

from sqlalchemy import ColumnElement, Connection, String, cast, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB

from app.alerts.endpoint import KEEP_ONE_INCIDENT
from app.store import notifying
from app.store.alert_tables import endpoints, outbox
from app.store.outbox_free import has_failed, is_idle

# What tells how alerts stand now. Only that makes an older message of the same alerts outdated.
_NEWS = ("firing", "resolved")
# A refresh does so, too, but only older ones: of what is news people see whether it was delivered.
_STANDING = (*_NEWS, "refresh")
# What has failed before follows a success so soon, and not at once: one that is refused again and
# again among others that are taken would be given up within seconds.
AFTER_A_SUCCESS_S = 60.0


def waits_for_another(conn: Connection) -> ColumnElement[bool]:
    """Whether a message may not go while an older one of the same alerts is due."""
    before = outbox.alias("before")
    query = select(literal(1)).select_from(before).where(before.c.seq < outbox.c.seq)
    query = query.where(before.c.job_id == outbox.c.job_id, before.c.rule == outbox.c.rule)
    query = query.where(before.c.endpoint_id == outbox.c.endpoint_id, before.c.state == "due")
    shares = _shares_one(conn, before.c.listed, outbox.c.fingerprints)
    return query.where(or_(shares, outbox.c.endpoint_id.in_(_of_one_incident()))).exists()


def drop_outdated(
    conn: Connection, endpoint_id: str, job_id: str | None, rule: str | None, *, now_s: float
) -> None:
    """A message that has failed gives way to newer ones that say how all its alerts stand now.

    So does one that was not tried yet because its endpoint rests: nobody is told that something
    begins which is over by then. Of refreshes only the newest is of use anyway.
    """
    if job_id is None:
        return  # about no alert
    waiting = _waiting(conn, endpoint_id, job_id, rule, now_s)
    query = select(endpoints.c.format, endpoints.c.probe_at_s)
    to = conn.execute(query.where(endpoints.c.endpoint_id == endpoint_id)).one_or_none()
    keeps_one = to is not None and to.format in KEEP_ONE_INCIDENT
    rests = to is not None and to.probe_at_s is not None
    outdated = _outdated(waiting, keeps_one=keeps_one, rests=rests)
    mine = _change(conn, outdated, now_s=now_s, state="outdated", done_s=now_s)
    notifying.count(conn, "outdated", mine)


def hurry(
    conn: Connection,
    endpoint_id: str,
    job_id: str | None,
    rule: str | None,
    news: Set[str],
    *,
    now_s: float,
) -> None:
    """What has failed and a new message waits for is as urgent as that one: it begins anew."""
    if job_id is None or not news:
        return
    waiting = _waiting(conn, endpoint_id, job_id, rule, now_s)
    slow = [row.seq for row in waiting if row.has_failed and not news.isdisjoint(row.listed)]
    _change(conn, slow, now_s=now_s, attempt=0, next_at_s=now_s)


def pull_forward(
    conn: Connection, endpoint_id: str, *, now_s: float, after_s: float = AFTER_A_SUCCESS_S
) -> None:
    """The endpoint may be well again: what it did not take before need not wait for hours.

    It has just taken a message; or somebody says so, who does not want to wait at all (0).
    """
    soon_s = now_s + after_s
    late = select(outbox.c.seq).where(outbox.c.endpoint_id == endpoint_id, has_failed(now_s))
    late = late.where(outbox.c.state == "due", outbox.c.next_at_s > soon_s)
    late = late.with_for_update(skip_locked=True)
    conn.execute(update(outbox).where(outbox.c.seq.in_(late)).values(next_at_s=soon_s))


def _waiting(
    conn: Connection, endpoint_id: str, job_id: str, rule: str | None, now_s: float
) -> Sequence[Any]:
    """What is due to the endpoint of one rule on one job, newest first."""
    names = (outbox.c.seq, outbox.c.kind, outbox.c.fingerprints, outbox.c.listed)
    is_at_rest = is_idle(now_s).label("is_idle")
    query = select(*names, is_at_rest, has_failed(now_s).label("has_failed"))
    query = query.where(outbox.c.job_id == job_id, outbox.c.rule == rule)
    query = query.where(outbox.c.endpoint_id == endpoint_id, outbox.c.state == "due")
    return conn.execute(query.order_by(outbox.c.seq.desc())).all()


def _outdated(waiting: Sequence[Any], *, keeps_one: bool, rests: bool) -> list[int]:
    told: set[str] = set()  # by newer news
    standing: set[str] = set()  # by these, or newer refreshes
    outdated = []
    for row in waiting:
        is_refresh = row.kind == "refresh"
        newer = standing if is_refresh else told
        is_said = bool(newer) and (keeps_one or newer.issuperset(row.fingerprints))
        gives_way = row.has_failed or (row.is_idle and (is_refresh or rests))
        if gives_way and is_said and row.fingerprints:
            outdated.append(row.seq)
            continue
        told.update(row.listed if row.kind in _NEWS else ())
        standing.update(row.listed if row.kind in _STANDING else ())
    return outdated


def _change(conn: Connection, seqs: Sequence[int], *, now_s: float, **values: Any) -> int:
    if not seqs:
        return 0
    mine = select(outbox.c.seq).where(outbox.c.seq.in_(seqs), outbox.c.state == "due")
    mine = mine.where(is_idle(now_s)).order_by(outbox.c.seq).with_for_update(skip_locked=True)
    locked = list(conn.execute(mine).scalars())
    return conn.execute(update(outbox).where(outbox.c.seq.in_(locked)).values(values)).rowcount


def _of_one_incident() -> Any:
    is_one = endpoints.c.format.in_(sorted(KEEP_ONE_INCIDENT))
    return select(endpoints.c.endpoint_id).where(is_one)


def _shares_one(conn: Connection, one: Any, other: Any) -> ColumnElement[bool]:
    """Whether two lists of texts, each in a column, have one in common."""
    a, b = _each(conn, one).alias("a"), _each(conn, other).alias("b")
    both = select(literal(1)).select_from(a).where(a.c.value == b.c.value)
    return both.select_from(b).correlate(one.table, other.table).exists()


def _each(conn: Connection, column: Any) -> Any:
    if conn.dialect.name == "sqlite":
        return func.json_each(column).table_valued("value")
    return func.jsonb_array_elements_text(cast(cast(column, String), JSONB)).table_valued("value")
