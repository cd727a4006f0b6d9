"""Which messages a sender may attempt now: none that another one has, and nobody's too many.

Endpoints that hang take their time from their own project alone: of those projects that have
something due, the one with the fewest attempts under way is served first. So it is at an endpoint
that all projects have, and among as many, who has the least waiting there goes before the others.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update

from app.alerts.breaker import PROBE_EVERY_S
from app.store import notifying
from app.store.alert_tables import endpoints, outbox
from app.store.outbox_free import is_free, is_idle, may_be_tried
from app.store.outbox_order import waits_for_another

MOST_AT_ONCE = 2  # attempts at one endpoint
# At all endpoints of a project. Two who choose at once may come to a few more between them.
MOST_OF_A_PROJECT = 32
DISABLED = "the endpoint is disabled"
REMOVED = "the endpoint is no longer there"
_GIVEN_UP_AT_ONCE = 500
_Busy = Counter[tuple[str, str]]  # attempts under way, by endpoint and project


def choose(conn: Connection, *, now_s: float, limit: int) -> list[int]:
    """The `seq` of deliveries to attempt now, in turn of each project, its longest due first.

    The endpoints of these are locked until the transaction ends: nobody else chooses among their
    deliveries meanwhile. One that is broken gets a single message, and no other for a minute.
    """
    most = _most_at_once(conn, now_s)
    # Locked first and counted then, so that two who ask at once do not both find room.
    busy = _num_leased(conn, now_s)
    ready = _within_room(_candidates(conn, most, now_s), most, busy)
    chosen = _in_turn(ready, busy, limit)
    told = {row.endpoint_id for row in chosen}
    probed = update(endpoints).where(endpoints.c.endpoint_id.in_(told))
    probed = probed.where(endpoints.c.probe_at_s.is_not(None))
    conn.execute(probed.values(probe_at_s=now_s + PROBE_EVERY_S))
    return _locked(conn, [row.seq for row in chosen], now_s)


def give_up(conn: Connection, *, now_s: float) -> None:
    """Messages to endpoints that are disabled or removed fail; a person may replay them."""
    takes_some = select(endpoints.c.endpoint_id).where(endpoints.c.is_enabled)
    query = select(outbox.c.seq, outbox.c.endpoint_id).where(outbox.c.state == "due")
    query = query.where(is_idle(now_s), outbox.c.endpoint_id.not_in(takes_some))
    query = query.order_by(outbox.c.seq).limit(_GIVEN_UP_AT_ONCE)
    lost = conn.execute(query.with_for_update(skip_locked=True)).all()
    if not lost:
        return
    known = set(conn.execute(select(endpoints.c.endpoint_id)).scalars())
    for detail, rows in (
        (DISABLED, [row.seq for row in lost if row.endpoint_id in known]),
        (REMOVED, [row.seq for row in lost if row.endpoint_id not in known]),
    ):
        mine = update(outbox).where(outbox.c.seq.in_(rows), outbox.c.state == "due")
        failed = conn.execute(mine.values(state="failed", detail=detail, done_s=now_s)).rowcount
        notifying.count(conn, "failed", failed)


def _most_at_once(conn: Connection, now_s: float) -> dict[str, int]:
    """How many attempts each endpoint may have that has something due; it is locked."""
    has_due = select(outbox.c.seq).where(outbox.c.endpoint_id == endpoints.c.endpoint_id)
    query = select(endpoints.c.endpoint_id, endpoints.c.probe_at_s)
    query = query.where(endpoints.c.is_enabled, has_due.where(is_free(now_s)).exists())
    query = query.where(may_be_tried(now_s)).order_by(endpoints.c.endpoint_id)
    rows = conn.execute(query.with_for_update(skip_locked=True))
    return {row.endpoint_id: MOST_AT_ONCE if row.probe_at_s is None else 1 for row in rows}


def _num_leased(conn: Connection, now_s: float) -> _Busy:
    key = (outbox.c.endpoint_id, outbox.c.project)
    query = select(*key, func.count()).where(outbox.c.state == "due", ~is_idle(now_s))
    return Counter({(row[0], row[1]): row[2] for row in conn.execute(query.group_by(*key))})


def _candidates(conn: Connection, endpoint_ids: Collection[str], now_s: float) -> Sequence[Any]:
    """The first few of each project at each endpoint, and how many it has waiting there."""
    key = (outbox.c.endpoint_id, outbox.c.project)
    order = ((outbox.c.kind != "test").label("can_wait"), outbox.c.next_at_s, outbox.c.seq)
    place = func.row_number().over(partition_by=key, order_by=order).label("place")
    number = func.count().over(partition_by=key).label("num_waiting")
    ready = select(*key, *order, place, number).where(is_free(now_s))
    ready = ready.where(outbox.c.endpoint_id.in_(endpoint_ids), ~waits_for_another(conn))
    first = ready.subquery()
    return conn.execute(select(first).where(first.c.place <= MOST_AT_ONCE)).all()


def _within_room(candidates: Sequence[Any], most: Mapping[str, int], busy: _Busy) -> list[Any]:
    """As many as each endpoint may have besides those under way, in the order they are due."""

    def turn(row: Any) -> tuple[Any, ...]:
        nth = row.place + busy[row.endpoint_id, row.project]
        # Somebody waits for what comes of a test: of one that rests it is the one that is tried.
        return nth, row.can_wait, row.num_waiting, row.next_at_s, row.seq

    room = Counter(most)
    room.subtract(_summed(busy, 0))
    ready = []
    for row in sorted(candidates, key=turn):
        if room[row.endpoint_id] > 0:
            room[row.endpoint_id] -= 1
            ready.append(row)
    return sorted(ready, key=lambda row: (row.next_at_s, row.seq))


def _summed(busy: _Busy, part: int) -> Counter[str]:
    """The same by a part of its key alone."""
    sums: Counter[str] = Counter()
    for key, number in busy.items():
        sums[key[part]] += number
    return sums


def _in_turn(ready: Sequence[Any], under_way: _Busy, limit: int) -> list[Any]:
    """The first of these, each time of the project that has the fewest under way."""
    busy = _summed(under_way, 1)
    waiting: dict[str, list[Any]] = defaultdict(list)
    for row in reversed(ready):
        waiting[row.project].append(row)
    turns = [_turn(rows, busy) for rows in waiting.values()]
    heapq.heapify(turns)
    chosen: list[Any] = []
    while turns and len(chosen) < limit and turns[0][0] < MOST_OF_A_PROJECT:
        project = heapq.heappop(turns)[-1]
        rows = waiting[project]
        chosen.append(rows.pop())
        busy[project] += 1
        if rows:
            heapq.heappush(turns, _turn(rows, busy))
    return chosen


def _turn(rows: Sequence[Any], busy: Counter[str]) -> tuple[int, float, int, str]:
    """What decides whose turn it is: how many are under way, and since when the next is due."""
    first = rows[-1]
    return busy[first.project], first.next_at_s, first.seq, first.project


def _locked(conn: Connection, seqs: Sequence[int], now_s: float) -> list[int]:
    """Those of these that nobody else is about to change."""
    mine = select(outbox.c.seq).where(outbox.c.seq.in_(seqs), is_free(now_s))
    return list(conn.execute(mine.with_for_update(skip_locked=True)).scalars())
