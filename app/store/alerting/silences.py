"""Silences and maintenance windows: past, active and future ones. The table is `muting`."""

from dataclasses import fields
from typing import Annotated

import msgspec
from sqlalchemy import Connection, select, update

from app.alerts.labels import MAX_SILENCE_DAYS, Silence
from app.errors import Conflict, InvalidRequest, SilenceNotFound
from app.store.alerting.alerts import MAX_ACTOR, check_matchers, row_of
from app.store.alerting.tables import muting
from app.store.columns import checked_text
from app.store.database import ListOrder, one_row

MAX_COMMENT = 2000
# Each is matched against every alert that is notified.
MAX_SILENCES = 500
MAX_TOTAL_MATCHERS = 1000
_DAY_S = 86_400.0
_COLUMNS = tuple(muting.c[field.name] for field in fields(Silence))
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z_-]{1,32}\Z")]
_ORDER = ListOrder((muting.c.ends_s, muting.c.silence_id), tuple[float, _Id])


def add(conn: Connection, silence: Silence) -> None:
    """Save the silence.

    Raises:
        InvalidRequest: it ends before it starts, lasts too long, or a text is too long.
        Conflict: the project has the maximum number of unexpired silences, or of matchers.
    """
    _check_limits(silence)
    _check_room(conn, silence)
    conn.execute(muting.insert().values(row_of(silence, _COLUMNS)))


def end(conn: Connection, project: str, silence_id: str, *, now_s: float) -> None:
    """End the silence now, unless it has ended; raises SilenceNotFound."""
    goes_on = update(muting).filter_by(project=project, silence_id=silence_id)
    goes_on = goes_on.where(muting.c.ends_s > now_s)
    if not conn.execute(goes_on.values(ends_s=now_s)).rowcount:
        get(conn, project, silence_id)


def end_with_run(conn: Connection, job_id: str, *, now_s: float) -> bool:
    """End the silences that last until the current run of this job ends; False without any."""
    until_end = update(muting).where(muting.c.until_end_of == job_id, muting.c.ends_s > now_s)
    return bool(conn.execute(until_end.values(ends_s=now_s)).rowcount)


def get(conn: Connection, project: str, silence_id: str) -> Silence:
    """One silence; raises as `end` does."""
    query = select(*_COLUMNS).filter_by(project=project, silence_id=silence_id)
    return Silence(*one_row(conn, query, SilenceNotFound(silence_id)))


def active(conn: Connection, project: str, *, now_s: float) -> list[Silence]:
    """The active silences, those that end first at the beginning."""
    query = select(*_COLUMNS).where(muting.c.project == project, muting.c.ends_s > now_s)
    query = query.where(muting.c.starts_s <= now_s).order_by(muting.c.ends_s, muting.c.silence_id)
    return [Silence(*row) for row in conn.execute(query)]


def page(
    conn: Connection,
    project: str,
    *,
    ends_after_s: float | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[Silence], str | None]:
    """A project's silences, those that end last first, and the next page's cursor.

    With `ends_after_s` (Unix time), only those that end later.
    """
    query = select(*_COLUMNS).where(muting.c.project == project)
    if ends_after_s is not None:
        query = query.where(muting.c.ends_s > ends_after_s)
    rows, next_cursor = _ORDER.page(conn, query, cursor, limit)
    return [Silence(*row) for row in rows], next_cursor


def _check_limits(silence: Silence) -> None:
    if not silence.starts_s < silence.ends_s <= silence.starts_s + MAX_SILENCE_DAYS * _DAY_S:
        raise InvalidRequest(
            f"a silence ends after it starts, and lasts at most {MAX_SILENCE_DAYS:g} days"
        )
    check_matchers(silence.matchers)
    checked_text("author", silence.author, MAX_ACTOR)
    checked_text("comment", silence.comment, MAX_COMMENT)


def _check_room(conn: Connection, silence: Silence) -> None:
    unexpired = (muting.c.project == silence.project, muting.c.ends_s > silence.created_s)
    known = conn.scalars(select(muting.c.matchers).where(*unexpired)).all()
    if len(known) >= MAX_SILENCES:
        raise Conflict(f"the project has {MAX_SILENCES} silences, the maximum: end one first")
    if len(silence.matchers) + sum(map(len, known)) > MAX_TOTAL_MATCHERS:
        raise Conflict(
            f"all silences of a project have at most {MAX_TOTAL_MATCHERS} matchers: end one first"
        )
