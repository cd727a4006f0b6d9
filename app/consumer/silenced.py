"""Messages that nobody is to get as they are: what they tell of was silenced since."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from app.alerts.silence import Silence
from app.alerts.views import silent_until
from app.store import alert_groups, alert_told, deliveries, muting, outbox
from app.store.alert_told import ToldKind, ToldRow
from app.store.engine import Connection
from app.store.outbox import Delivery
from app.trace.names import project_of

# An acknowledgement only makes it quieter.
_TELLING = ("firing", "resolved")


@dataclass(frozen=True, slots=True)
class _Held:
    """A message that is not sent, what was told of its alerts, and when to look at them again."""

    delivery: Delivery
    job_id: str
    rule: str
    told: Mapping[str, ToldRow]
    again_s: float


def not_silenced(conn: Connection, claimed: Sequence[Delivery], now_s: float) -> list[Delivery]:
    """Those of these claimed deliveries that are to be sent; the others are done with.

    What they would have told is told again once the silence is over, if it is still so. A message
    of several alerts cannot be split: the group is looked at again at once, and a new message tells
    what is not silenced.
    """

    @cache
    def silences(project: str) -> list[Silence]:
        return muting.active(conn, project, now_s=now_s)

    kept, all_held = [], []
    for delivery in claimed:
        active = silences(project_of(delivery.job_id)) if delivery.job_id else []
        held = _held(conn, delivery, active, now_s) if active else None
        if held is None:
            kept.append(delivery)
        else:
            outbox.silenced(conn, delivery, now_s=now_s)
            all_held.append(held)
    unheard = [held for held in all_held if not _untell(conn, held)]
    # Last, and in the order in which all others lock groups.
    for held in sorted(all_held, key=lambda each: (each.job_id, each.rule)):
        if held in unheard:
            alert_groups.untold(conn, held.job_id, held.rule, at_s=held.delivery.created_s)
        alert_groups.wake(conn, held.job_id, held.rule, at_s=held.again_s)
    return kept


def _held(
    conn: Connection, delivery: Delivery, silences: Sequence[Silence], now_s: float
) -> _Held | None:
    """The delivery, if it is kept back; None: it is to be sent."""
    if delivery.job_id is None or delivery.rule is None or delivery.kind not in _TELLING:
        return None
    told = alert_told.of_group(conn, delivery.job_id, delivery.rule)
    mine = {each: told[each] for each in delivery.fingerprints if each in told}
    labels = {fingerprint: row.labels for fingerprint, row in mine.items()}
    until = silent_until(labels, silences, now_s)
    if not until:
        return None
    again_s = min(until.values()) if len(until) == len(mine) else now_s
    return _Held(delivery, delivery.job_id, delivery.rule, mine, again_s)


def _untell(conn: Connection, held: _Held) -> bool:
    """Take back what counts as told; whether somebody may have heard some of it all the same."""
    at_s = held.delivery.created_s
    heard = deliveries.told_of(conn, held.job_id, held.rule, written_s=at_s)
    alert_told.save(conn, held.job_id, held.rule, _as_untold(at_s, held.told, heard))
    return bool(heard)


def _as_untold(
    at_s: float, told: Mapping[str, ToldRow], heard: Collection[str]
) -> dict[str, ToldRow]:
    """Rows by which what was not told at this moment is due again, whatever was said of each alert.

    One that some receiver knows to fire counts as told so, long ago: it is repeated if it still
    fires, and its end is told if it does not, to all receivers alike, since others may have got
    their message. One of which nobody knows is news, if it still fires. Of what a later message
    tells, that one answers for itself.
    """
    untold = {}
    for fingerprint, row in told.items():
        if row.kind in _TELLING and row.at_s == at_s:
            is_unheard = row.first_at_s == at_s and fingerprint not in heard
            is_news = is_unheard and row.kind == "firing"
            kind: ToldKind = "lapsed" if is_news else "firing"
            untold[fingerprint] = replace(row, kind=kind, at_s=0.0)
    return untold
