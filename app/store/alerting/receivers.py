"""Receivers of alerts: their settings, health, and limits. The table is called `endpoints`.

URL, secrets and headers are encrypted together in the column `sealed`, which lists do not open;
`url` has the public part of the address. The number of receivers is limited, since each gets the
alerts of all jobs of its project.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import asdict
from sqlalchemy import Connection, delete, func, not_, or_, select
from sqlalchemy import update as update_rows

from app.alerts.formats.registry import knows_each_alert
from app.alerts.receiver import SETTINGS_RECEIVER_ID, Receiver, next_probe_s, public_address
from app.errors import Conflict, ReceiverNotFound, SecretsLocked
from app.store.alerting.alerts import MAX_URL, check_matchers, row_of
from app.store.alerting.deliveries import MAX_DETAIL
from app.store.alerting.tables import endpoints
from app.store.columns import checked_text, clipped
from app.store.credentials.sealing import keys_of, may_open
from app.store.database import insert, one_row


@dataclass(frozen=True, slots=True)
class ReceiverHealth:
    """Health of a receiver; times are Unix seconds.

    `failures` in a row since `failing_since_s`. Nothing is sent before `probe_at_s`, or after it
    was disabled at `disabled_at_s`. `last_detail` describes the last failed attempt; before the
    first delivery also why the receiver was not reached when it was saved.
    """

    failures: int = 0
    failing_since_s: float | None = None
    probe_at_s: float | None = None
    disabled_at_s: float | None = None
    disabled_reason: str | None = None
    last_ok_s: float | None = None
    last_detail: str | None = None


_HEALTH_COLUMNS = tuple(endpoints.c[field.name] for field in fields(ReceiverHealth))
# After a reset; what was delivered stays known.
_HEALTHY = {
    field.name: field.default for field in fields(ReceiverHealth) if field.name != "last_ok_s"
}


def add(conn: Connection, receiver: Receiver) -> None:
    """Add the receiver.

    Raises:
        InvalidRequest: a text is too long, or there are too many matchers.
        Conflict: the project has the maximum number of receivers, or of this format.
        SecretsLocked: there is no key to encrypt its secrets with.
    """
    _check_number(conn, receiver)
    conn.execute(endpoints.insert().values(_row_of(conn, receiver) | {"failures": 0}))


def update(conn: Connection, receiver: Receiver) -> bool:
    """Save the receiver; True if its health was reset.

    That is so if it was enabled again, or has a new address or secret.

    Raises:
        InvalidRequest, Conflict, SecretsLocked: as `add` does.
        ReceiverNotFound: the project has no receiver of its own with this id.
    """
    _check_push_receivers(conn, receiver)
    key = {"endpoint_id": receiver.endpoint_id, "project": receiver.project}
    query = select(*_COLUMNS).filter_by(**key)
    known = _receiver_of(conn, one_row(conn, query, ReceiverNotFound(receiver.endpoint_id)))
    is_anew = receiver.is_enabled and not (known.is_enabled and _have_same_target(known, receiver))
    values = _row_of(conn, receiver) | (_HEALTHY if is_anew else {})
    conn.execute(update_rows(endpoints).filter_by(**key).values(values))
    return is_anew


def remove(conn: Connection, project: str, endpoint_id: str) -> None:
    """Remove the receiver; raises ReceiverNotFound as `update` does."""
    removed = delete(endpoints).filter_by(endpoint_id=endpoint_id, project=project)
    if not conn.execute(removed).rowcount:
        raise ReceiverNotFound(endpoint_id)


def get(conn: Connection, project: str, endpoint_id: str, *, for_update: bool = False) -> Receiver:
    """A receiver with its secrets: the project's own, or the one of the settings.

    With `for_update` its row is locked until the transaction ends. Of one whose secrets cannot be
    read, `locked` says why.

    Raises:
        ReceiverNotFound: there is no such receiver.
    """
    query = select(*_COLUMNS).where(endpoints.c.endpoint_id == endpoint_id)
    query = query.where(_is_visible_to(project))
    query = query.with_for_update() if for_update else query
    return _receiver_of(conn, one_row(conn, query, ReceiverNotFound(endpoint_id)))


def without_secrets(conn: Connection, project: str) -> list[Receiver]:
    """A project's receivers, including the one of the settings, without secrets and headers.

    `url` is the public part of the address.
    """
    return _public_receivers(conn, _is_visible_to(project))


def of_alerts(conn: Connection, project: str) -> list[Receiver]:
    """As `without_secrets`, without those that get heartbeats only."""
    return _public_receivers(
        conn, _is_visible_to(project) & endpoints.c.heartbeat_every_s.is_(None)
    )


def _public_receivers(conn: Connection, condition: Any) -> list[Receiver]:
    query = select(*_COLUMNS).where(condition)
    rows = conn.execute(query.order_by(endpoints.c.endpoint_id))
    keys = keys_of(conn)
    return [Receiver(**_public_values(row), locked=keys.why_locked(row.sealed)) for row in rows]


def all_enabled(conn: Connection) -> list[Receiver]:
    """The enabled receivers of all projects with their secrets, those of heartbeats included."""
    query = select(*_COLUMNS).where(endpoints.c.is_enabled)
    rows = conn.execute(query.order_by(endpoints.c.endpoint_id))
    return [_receiver_of(conn, row) for row in rows]


def without_key(conn: Connection) -> dict[str, str]:
    """Enabled receivers whose key is not here, by id: why nothing can be sent to them from here."""
    query = select(endpoints.c.endpoint_id, endpoints.c.sealed).where(endpoints.c.is_enabled)
    query = query.where(not_(may_open(conn, endpoints.c.sealed))).order_by(endpoints.c.endpoint_id)
    reasons = {row.endpoint_id: keys_of(conn).why_locked(row.sealed) for row in conn.execute(query)}
    return {endpoint_id: reason for endpoint_id, reason in reasons.items() if reason is not None}


def has_due_heartbeats(conn: Connection, *, now_s: float) -> bool:
    """Whether a receiver's next heartbeat is due; works in a read transaction."""
    return bool(conn.scalar(select(select(endpoints).where(_is_heartbeat_due(now_s)).exists())))


def claim_heartbeats(conn: Connection, *, now_s: float) -> list[Receiver]:
    """The enabled receivers whose next heartbeat is due; it counts as written from now on."""
    claim = update_rows(endpoints).where(_is_heartbeat_due(now_s)).values(heartbeat_at_s=now_s)
    claimed = conn.execute(claim.returning(endpoints.c.endpoint_id)).scalars().all()
    return list(of_ids(conn, claimed).values())


def heartbeats_of(conn: Connection, project: str) -> dict[str, float | None]:
    """When the last heartbeat to each dead-man's switch of a project was written, by id."""
    query = select(endpoints.c.endpoint_id, endpoints.c.heartbeat_at_s)
    query = query.where(_is_visible_to(project), endpoints.c.heartbeat_every_s.is_not(None))
    return {row.endpoint_id: row.heartbeat_at_s for row in conn.execute(query)}


def _is_heartbeat_due(now_s: float) -> Any:
    every_s, at_s = endpoints.c.heartbeat_every_s, endpoints.c.heartbeat_at_s
    # A time ahead of now was set by a clock that has been set back.
    is_due = or_(at_s.is_(None), at_s <= now_s - every_s, at_s > now_s)
    return endpoints.c.is_enabled & every_s.is_not(None) & is_due


def of_ids(conn: Connection, endpoint_ids: Sequence[str]) -> dict[str, Receiver]:
    """The receivers with these ids, of any project, with their secrets."""
    query = select(*_COLUMNS)
    rows = conn.execute(query.where(endpoints.c.endpoint_id.in_(sorted(set(endpoint_ids)))))
    return {row.endpoint_id: _receiver_of(conn, row) for row in rows}


def put_settings_receiver(conn: Connection, receiver: Receiver | None) -> None:
    """Save the receiver of the settings, which all projects share; None removes it.

    Its health is kept while its address and secret stay the same.

    Raises:
        SecretsLocked: there is no key to encrypt its secrets with.
    """
    is_of_settings = endpoints.c.endpoint_id == SETTINGS_RECEIVER_ID
    if receiver is None:
        conn.execute(delete(endpoints).where(is_of_settings))
        return
    values = _row_of(conn, receiver) | {"endpoint_id": SETTINGS_RECEIVER_ID, "project": None}
    known = conn.execute(select(*_COLUMNS).where(is_of_settings)).one_or_none()
    anew = _HEALTHY
    if known and _have_same_target(_receiver_of(conn, known), receiver):
        anew = {"is_enabled": known.is_enabled}
    statement = insert(conn, endpoints).values(values | {"failures": 0})
    statement = statement.on_conflict_do_update(index_elements=["endpoint_id"], set_=values | anew)
    conn.execute(statement)


def health(conn: Connection, endpoint_ids: Sequence[str]) -> dict[str, ReceiverHealth]:
    """Health of the receivers with these ids."""
    query = select(endpoints.c.endpoint_id, *_HEALTH_COLUMNS)
    rows = conn.execute(query.where(endpoints.c.endpoint_id.in_(sorted(set(endpoint_ids)))))
    return {endpoint_id: ReceiverHealth(*rest) for endpoint_id, *rest in rows}


def mark_succeeded(conn: Connection, endpoint_id: str, now_s: float) -> None:
    """Note a delivered message; a receiver that was disabled meanwhile stays disabled."""
    values = {"failures": 0, "failing_since_s": None, "probe_at_s": None, "last_ok_s": now_s}
    conn.execute(_update_one(endpoint_id).values(values))


def mark_failed(conn: Connection, endpoint_id: str, *, detail: str, now_s: float) -> ReceiverHealth:
    """Note a failed attempt; returns the new health, the default one if it was removed."""
    failure = _update_one(endpoint_id).values(
        failures=endpoints.c.failures + 1,
        failing_since_s=func.coalesce(endpoints.c.failing_since_s, now_s),
        last_detail=clipped(detail, MAX_DETAIL),
    )
    row = conn.execute(failure.returning(*_HEALTH_COLUMNS)).one_or_none()
    if row is None:
        return ReceiverHealth()
    probe_at_s = next_probe_s(row.failures, now_s)
    conn.execute(_update_one(endpoint_id).values(probe_at_s=probe_at_s))
    return ReceiverHealth(**{**row._mapping, "probe_at_s": probe_at_s})


def disable(conn: Connection, endpoint_id: str, *, reason: str, now_s: float) -> bool:
    """Disable the receiver until a person enables it; False if it was disabled already."""
    values = {"disabled_at_s": now_s, "disabled_reason": clipped(reason, MAX_DETAIL)}
    enabled = _update_one(endpoint_id).where(endpoints.c.is_enabled)
    return bool(conn.execute(enabled.values(values | {"is_enabled": False})).rowcount)


def enable(conn: Connection, endpoint_id: str) -> None:
    """Enable the receiver, and reset its health."""
    conn.execute(_update_one(endpoint_id).values(_HEALTHY | {"is_enabled": True}))


def note_not_reached(conn: Connection, endpoint_id: str, reason: str | None) -> None:
    """Note why the receiver was not reached when it was saved; None if it was.

    That is no failed attempt: it must not count towards disabling a receiver that gets no message
    for a day.
    """
    values = {"last_detail": reason and clipped(reason, MAX_DETAIL), "last_ok_s": None}
    conn.execute(_update_one(endpoint_id).values(values))


def probe_at(conn: Connection, endpoint_id: str, *, at_s: float) -> None:
    """Let a failing receiver get its next message at this time, if that is earlier."""
    later = _update_one(endpoint_id).where(endpoints.c.probe_at_s > at_s)
    conn.execute(later.values(probe_at_s=at_s))


def _update_one(endpoint_id: str) -> Any:
    return update_rows(endpoints).where(endpoints.c.endpoint_id == endpoint_id)


def _is_visible_to(project: str) -> Any:
    return or_(endpoints.c.project == project, endpoints.c.project.is_(None))


MAX_NAME = 100
MAX_SECRET_CHARS = 512
MAX_HEADER_CHARS = 1024

_NOT_COLUMNS = ("secrets", "headers", "locked")
_PUBLIC_COLUMNS = tuple(
    endpoints.c[field.name] for field in fields(Receiver) if field.name not in _NOT_COLUMNS
)
_COLUMNS = (*_PUBLIC_COLUMNS, endpoints.c.sealed)


class _Sealed(msgspec.Struct):
    """The JSON in the column `sealed`."""

    url: str
    secrets: tuple[str, ...]
    headers: dict[str, str]


def _secrets_of(receiver: Receiver) -> _Sealed:
    return _Sealed(receiver.url, tuple(receiver.secrets), dict(receiver.headers))


def _sealed_columns(conn: Connection, receiver: Receiver) -> dict[str, object]:
    """The columns in which the receiver's address and secrets are, encrypted."""
    plain = msgspec.json.encode(_secrets_of(receiver))
    return {
        "url": public_address(receiver.format, receiver.url),
        "sealed": keys_of(conn).seal(plain, _place(receiver.endpoint_id)),
    }


def reseal(conn: Connection, endpoint_id: str) -> bool:
    """Seal the receiver with the newest key; False if it cannot be opened."""
    receiver = of_ids(conn, [endpoint_id]).get(endpoint_id)
    if receiver is None or receiver.locked is not None:
        return False
    conn.execute(_update_one(endpoint_id).values(_sealed_columns(conn, receiver)))
    return True


def _place(endpoint_id: str) -> str:
    return f"endpoints/{endpoint_id}"


def _have_same_target(known: Receiver, receiver: Receiver) -> bool:
    """Whether nothing has changed after which earlier failures no longer count."""
    return known.locked is None and _secrets_of(known) == _secrets_of(receiver)


def _row_of(conn: Connection, receiver: Receiver) -> dict[str, object]:
    """The row without its health; raises as `add` does."""
    _check_limits(receiver)
    return row_of(receiver, _PUBLIC_COLUMNS) | _sealed_columns(conn, receiver)


def _check_limits(receiver: Receiver) -> None:
    check_matchers(receiver.matchers)
    checked_text("name", receiver.name, MAX_NAME)
    checked_text("url", receiver.url, MAX_URL)
    for secret in receiver.secrets:
        checked_text("secret", secret, MAX_SECRET_CHARS)
    for text in chain.from_iterable(receiver.headers.items()):
        checked_text("header", text, MAX_HEADER_CHARS)


def _receiver_of(conn: Connection, row: Any) -> Receiver:
    """The receiver in a row of `_COLUMNS`, with its secrets; locked where they cannot be read."""
    values = _public_values(row)
    try:
        plain = keys_of(conn).open(row.sealed, _place(row.endpoint_id))
    except SecretsLocked as error:
        return Receiver(**values, locked=str(error))
    return Receiver(**values | asdict(msgspec.json.decode(plain, type=_Sealed)))


def _public_values(row: Any) -> dict[str, Any]:
    """The values in a row of `_COLUMNS` that are not encrypted; `url` has no secret."""
    values = {column.name: getattr(row, column.name) for column in _PUBLIC_COLUMNS}
    return values | {"url": public_address(row.format, row.url)}


MAX_RECEIVERS = 50
# Each repeatedly gets all alerts of a rule on a job, up to a thousand.
MAX_PUSH_RECEIVERS = 5


def _check_number(conn: Connection, receiver: Receiver) -> None:
    """Raises Conflict if the project has the maximum number of receivers, or of this format."""
    _check_push_receivers(conn, receiver)
    counted = select(func.count()).where(endpoints.c.project == receiver.project)
    if conn.execute(counted).scalar_one() >= MAX_RECEIVERS:
        raise Conflict(f"the project has {MAX_RECEIVERS} receivers, the maximum: remove one first")


def _check_push_receivers(conn: Connection, receiver: Receiver) -> None:
    """Raises Conflict if the project has the maximum number of receivers of this format."""
    if not knows_each_alert(receiver.format):
        return
    others = select(func.count()).where(
        endpoints.c.project == receiver.project,
        endpoints.c.format == receiver.format,
        endpoints.c.endpoint_id != receiver.endpoint_id,
    )
    if conn.execute(others).scalar_one() >= MAX_PUSH_RECEIVERS:
        raise Conflict(f"a project has at most {MAX_PUSH_RECEIVERS} receivers of {receiver.format}")
