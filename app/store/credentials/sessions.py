"""Sessions of signed-in pages: whose they are, and until when.

A cookie holds a session's id and a secret, of which only a digest is stored. Sessions are in no
backup.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, Select, delete, or_, select, update

from app.errors import SessionNotFound
from app.store.columns import clipped
from app.store.tables import sessions
from app.store.tokens import used_minute_s

MAX_USER_AGENT = 300
MAX_PER_TOKEN = 100  # the oldest ends when another one begins
_FORGOTTEN_AFTER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session without its secret; times are Unix seconds."""

    session_id: str
    token_id: str
    project: str
    user_agent: str
    address: str
    created_s: float
    expires_s: float
    last_used_s: float | None  # to the minute
    ended_s: float | None
    digest: str = field(repr=False)

    def is_good(self, now_s: float) -> bool:
        """Whether it has neither ended nor expired."""
        return self.ended_s is None and now_s < self.expires_s


_COLUMNS = tuple(sessions.c[column.name] for column in fields(SessionRecord))


def begin(conn: Connection, record: SessionRecord) -> None:
    """Add a session; removes old ones, and ends the token's oldest beyond `MAX_PER_TOKEN`."""
    now_s = record.created_s
    conn.execute(delete(sessions).where(sessions.c.expires_s < now_s - _FORGOTTEN_AFTER_S))
    clipped_agent = {"user_agent": clipped(record.user_agent, MAX_USER_AGENT)}
    conn.execute(sessions.insert().values(asdict(record) | clipped_agent))
    mine = _good(now_s).where(sessions.c.token_id == record.token_id)
    mine = mine.order_by(sessions.c.created_s.desc(), sessions.c.session_id.desc())
    older = [row.session_id for row in conn.execute(mine.offset(MAX_PER_TOKEN))]
    conn.execute(update(sessions).where(sessions.c.session_id.in_(older)).values(ended_s=now_s))


def find(conn: Connection, session_id: str) -> SessionRecord | None:
    """The session with this id, good or not."""
    query = select(*_COLUMNS).where(sessions.c.session_id == session_id)
    row = conn.execute(query).one_or_none()
    return None if row is None else SessionRecord(*row)


def active(
    conn: Connection, project: str, *, now_s: float, token_id: str | None = None
) -> Sequence[SessionRecord]:
    """The project's good sessions, or only those of one token, the newest first."""
    query = _good(now_s).where(sessions.c.project == project)
    if token_id is not None:
        query = query.where(sessions.c.token_id == token_id)
    rows = conn.execute(query.order_by(sessions.c.created_s.desc(), sessions.c.session_id))
    return [SessionRecord(*row) for row in rows]


def end(conn: Connection, project: str, session_id: str, *, now_s: float) -> bool:
    """End a session; False if it had ended already.

    Raises:
        SessionNotFound: the project has no such session.
    """
    mine = (sessions.c.session_id == session_id, sessions.c.project == project)
    if conn.execute(select(sessions.c.session_id).where(*mine)).one_or_none() is None:
        raise SessionNotFound(session_id)
    good = update(sessions).where(*mine, sessions.c.ended_s.is_(None))
    return bool(conn.execute(good.values(ended_s=now_s)).rowcount)


def mark_used(conn: Connection, session_id: str, *, now_s: float) -> None:
    """Note that the session was used; to the minute, so that it is rarely written."""
    minute_s = used_minute_s(now_s)
    older = or_(sessions.c.last_used_s.is_(None), sessions.c.last_used_s < minute_s)
    mine = sessions.c.session_id == session_id
    conn.execute(update(sessions).where(mine, older).values(last_used_s=minute_s))


def _good(now_s: float) -> Select[Any]:
    return select(*_COLUMNS).where(sessions.c.ended_s.is_(None), sessions.c.expires_s > now_s)
