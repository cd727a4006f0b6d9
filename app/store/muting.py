"""Silences and maintenance windows, those to come and those over included."""

from dataclasses import fields
from typing import Annotated, Any

import msgspec
from sqlalchemy import Connection, select, tuple_, update

from app.alerts.silence import MAX_DAYS, Silence
from app.errors import Conflict, InvalidRequest, SilenceNotFound
from app.store.alert_json import matchers_json, matchers_of
from app.store.alert_tables import muting
from app.store.alerts import MAX_WHO
from app.store.matcher_limits import check_matchers
from app.store.paging import from_cursor, split, to_cursor
from app.store.texts import checked

MAX_COMMENT = 2000
# Each is compared with every alert that is told.
MAX_SILENCES = 500
MAX_MATCHERS_IN_ALL = 1000
_DAY_S = 86_400.0
_COLUMNS = tuple(muting.c[each.name] for each in fields(Silence))
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z_-]{1,32}\Z")]


def add(conn: Connection, silence: Silence) -> None:
    """Keep the silence.

    Raises:
        InvalidRequest: it ends before it starts, lasts too long, or has texts that do.
        Conflict: the project has as many as it may that are not over, or as many matchers.
    """
    _check(silence)
    _check_room(conn, silence)
    values = {column.name: getattr(silence, column.name) for column in _COLUMNS}
    conn.execute(muting.insert().values(values | {"matchers": matchers_json(silence.matchers)}))


def end(conn: Connection, project: str, silence_id: str, *, now_s: float) -> None:
    """The silence is over now, if it was not before.

    Raises:
        SilenceNotFound: the project has no such silence.
    """
    mine = (muting.c.project == project, muting.c.silence_id == silence_id)
    goes_on = update(muting).where(*mine, muting.c.ends_s > now_s)
    if not conn.execute(goes_on.values(ends_s=now_s)).rowcount:
        get(conn, project, silence_id)


def get(conn: Connection, project: str, silence_id: str) -> Silence:
    """One silence; raises as `end` does."""
    mine = (muting.c.project == project, muting.c.silence_id == silence_id)
    row = conn.execute(select(*_COLUMNS).where(*mine)).one_or_none()
    if row is None:
        raise SilenceNotFound(silence_id)
    return _silence(row)


def active(conn: Connection, project: str, *, now_s: float) -> list[Silence]:
    """The silences that hold now, those that end first at the beginning."""
    query = select(*_COLUMNS).where(muting.c.project == project, muting.c.ends_s > now_s)
    query = query.where(muting.c.starts_s <= now_s).order_by(muting.c.ends_s, muting.c.silence_id)
    return [_silence(row) for row in conn.execute(query)]


def page(
    conn: Connection,
    project: str,
    *,
    ends_after_s: float | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[Silence], str | None]:
    """A project's silences, those that end last first, and the next page's cursor.

    With `ends_after_s`, a Unix time, those that end later only.
    """
    query = select(*_COLUMNS).where(muting.c.project == project)
    if ends_after_s is not None:
        query = query.where(muting.c.ends_s > ends_after_s)
    if cursor is not None:
        key = tuple_(muting.c.ends_s, muting.c.silence_id)
        query = query.where(key < from_cursor(cursor, tuple[float, _Id]))
    query = query.order_by(muting.c.ends_s.desc(), muting.c.silence_id.desc())
    rows, more = split([_silence(row) for row in conn.execute(query.limit(limit + 1))], limit)
    return rows, to_cursor(rows[-1].ends_s, rows[-1].silence_id) if more else None


def _check(silence: Silence) -> None:
    if not silence.starts_s < silence.ends_s <= silence.starts_s + MAX_DAYS * _DAY_S:
        raise InvalidRequest(f"a silence ends after it starts, and lasts at most {MAX_DAYS:g} days")
    check_matchers(silence.matchers)
    checked("author", silence.author, MAX_WHO)
    checked("comment", silence.comment, MAX_COMMENT)


def _check_room(conn: Connection, silence: Silence) -> None:
    mine = (muting.c.project == silence.project, muting.c.ends_s > silence.created_s)
    known = conn.scalars(select(muting.c.matchers).where(*mine)).all()
    if len(known) >= MAX_SILENCES:
        raise Conflict(
            f"the project has {MAX_SILENCES} silences, the most it may have: end one first"
        )
    if len(silence.matchers) + sum(map(len, known)) > MAX_MATCHERS_IN_ALL:
        raise Conflict(
            f"all silences of a project have at most {MAX_MATCHERS_IN_ALL} matchers: end one first"
        )


def _silence(row: Any) -> Silence:
    return Silence(**{**row._mapping, "matchers": matchers_of(row.matchers)})
