"""When to look again at the alerts of one rule on one job, to tell what is new of them.

Whoever changes something wakes the group; a dispatcher claims it, for a while, and says with
`done` when it is to be looked at next. Who dies in between lets the claim lapse. What wakes a
group while it is claimed is not lost: `done` then keeps the earlier moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, or_, select, tuple_, update

from app.errors import LeaseLost
from app.store.alert_tables import alert_groups, alert_told, alerts
from app.store.projects import owns
from app.store.upsert import insert
from app.trace.names import plain

_TABLE = alert_groups
_KEY = (_TABLE.c.job_id, _TABLE.c.rule)
# Clocks may be set back: nothing is to wait for as long as one was ahead.
LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Group:
    """One rule on one job, claimed; `last_at_s` is when somebody was last told of it (Unix).

    Since `refreshed_at_s` nothing was said again to receivers that forget. The two numbers say
    whose claim it is, and what it has seen.
    """

    job_id: str
    rule: str
    last_at_s: float | None
    num_claims: int = 0
    num_wakes: int = 0
    refreshed_at_s: float | None = None


def wake(conn: Connection, job_id: str, rule: str, *, at_s: float) -> None:
    """Look at the group at this moment, if it is not to be looked at before."""
    statement = insert(conn, _TABLE).values(
        job_id=job_id, rule=rule, next_at_s=at_s, lease_until_s=0.0, num_claims=0, num_wakes=1
    )
    conn.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=_woken(at_s)))


def wake_project(conn: Connection, project: str, at_s: float) -> None:
    """The same for all groups of a project that have alerts, or of which somebody was told."""
    has_some = or_(*(_of_group(table).exists() for table in (alerts, alert_told)))
    mine = select(*_KEY).where(owns(project, _TABLE.c.job_id), has_some)
    # Locked in the order of their keys, as others lock them.
    keys = [tuple(row) for row in conn.execute(mine.order_by(*_KEY).with_for_update())]
    for part in _in_parts(keys):
        conn.execute(update(_TABLE).where(tuple_(*_KEY).in_(part)).values(_woken(at_s)))


def claim(conn: Connection, *, now_s: float, lease_s: float, limit: int) -> list[Group]:
    """Groups to look at now, those that wait longest first; nobody else gets them meanwhile."""
    due = select(*_KEY).where(_is_due(now_s))
    due = due.order_by(_TABLE.c.next_at_s, *_KEY).limit(limit).with_for_update(skip_locked=True)
    keys = [tuple(row) for row in conn.execute(due)]
    claimed = update(_TABLE).where(tuple_(*_KEY).in_(keys))
    # To be looked at again when the claim lapses, unless somebody says otherwise before.
    lease = {"lease_until_s": now_s + lease_s, "next_at_s": now_s + lease_s}
    claimed = claimed.values(**lease, num_claims=_TABLE.c.num_claims + 1)
    rows = conn.execute(claimed.returning(*(_TABLE.c[each.name] for each in fields(Group)))).all()
    groups = {(row.job_id, row.rule): Group(*row) for row in rows}
    return [groups[key] for key in keys]


def done(
    conn: Connection,
    group: Group,
    *,
    next_at_s: float | None,
    last_at_s: float | None,
    refreshed_at_s: float | None = None,
) -> None:
    """The group was looked at; it is to be again at `next_at_s`, or when something wakes it.

    `last_at_s` is when somebody was told something of it, None where nobody was; nothing was said
    again since `refreshed_at_s`.

    Raises:
        LeaseLost: somebody else has claimed it since: commit nothing.
    """
    is_quiet = _TABLE.c.num_wakes == group.num_wakes
    woken = _TABLE.c.next_at_s if next_at_s is None else _earlier(next_at_s)
    mine = update(_TABLE).where(_TABLE.c.job_id == group.job_id, _TABLE.c.rule == group.rule)
    settled = mine.where(_TABLE.c.num_claims == group.num_claims).values(
        next_at_s=case((is_quiet, next_at_s), else_=woken),
        lease_until_s=0.0,
        last_at_s=_TABLE.c.last_at_s if last_at_s is None else last_at_s,
        refreshed_at_s=refreshed_at_s,
    )
    if not conn.execute(settled).rowcount:
        raise LeaseLost(f"the alerts of job {plain(group.job_id)!r} are told by somebody else now")


def untold(conn: Connection, job_id: str, rule: str, *, at_s: float) -> None:
    """Nobody got what was told of the group at this moment: the next notice need not wait."""
    mine = update(_TABLE).where(_TABLE.c.job_id == job_id, _TABLE.c.rule == rule)
    conn.execute(mine.where(_TABLE.c.last_at_s == at_s).values(last_at_s=None))


def put_off(conn: Connection, group: Group, *, next_at_s: float) -> None:
    """The group could not be looked at; it is to be again at `next_at_s`, behind others.

    Nothing changes where somebody else has it by now, or it is done, or locked.
    """
    mine = select(*_KEY).where(_TABLE.c.job_id == group.job_id, _TABLE.c.rule == group.rule)
    mine = mine.where(_TABLE.c.num_claims == group.num_claims, _TABLE.c.lease_until_s > 0)
    keys = [tuple(row) for row in conn.execute(mine.with_for_update(skip_locked=True))]
    conn.execute(update(_TABLE).where(tuple_(*_KEY).in_(keys)).values(next_at_s=next_at_s))


def has_due(conn: Connection, *, now_s: float) -> bool:
    """Whether there is something to claim: asked in a transaction that only reads."""
    return bool(conn.scalar(select(select(_TABLE).where(_is_due(now_s)).exists())))


def next_due_s(conn: Connection, *, now_s: float) -> float | None:
    """When (Unix time) the next group is due that is nobody's now; None where none is to be."""
    free = _TABLE.c.lease_until_s <= now_s
    found: float | None = conn.scalar(select(func.min(_TABLE.c.next_at_s)).where(free))
    return found


def in_time(next_at_s: float | None, *, now_s: float) -> float | None:
    """The moment for `done`: a group of which something is to come is looked at every hour."""
    return None if next_at_s is None else min(next_at_s, now_s + LONGEST_WAIT_S)


def _is_due(now_s: float) -> ColumnElement[bool]:
    """Due and nobody's; what lies too far ahead is from before the clock was set back."""
    next_at_s, lease_until_s = _TABLE.c.next_at_s, _TABLE.c.lease_until_s
    is_due = or_(next_at_s <= now_s, next_at_s > now_s + 2 * LONGEST_WAIT_S)
    return is_due & or_(lease_until_s <= now_s, lease_until_s > now_s + LONGEST_WAIT_S)


def _woken(at_s: float) -> dict[str, Any]:
    return {"next_at_s": _earlier(at_s), "num_wakes": _TABLE.c.num_wakes + 1}


def _earlier(at_s: float) -> Any:
    return case((_TABLE.c.next_at_s <= at_s, _TABLE.c.next_at_s), else_=at_s)


def _of_group(table: Any) -> Any:
    return select(table.c.job_id).where(
        table.c.job_id == _TABLE.c.job_id, table.c.rule == _TABLE.c.rule
    )


def _in_parts(keys: Sequence[Any], size: int = 500) -> list[Sequence[Any]]:
    # SQLite takes so many parameters and no more.
    return [keys[at : at + size] for at in range(0, len(keys), size)]
