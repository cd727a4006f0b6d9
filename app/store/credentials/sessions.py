"""Sessions of signed-in pages: whose they are, and until when.

A cookie holds a session's id and a secret, of which only a digest is stored. Sessions are in no
backup.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, Select, delete, select, update

from app.errors import SessionNotFound
from app.store.columns import clipped
from app.store.database import equal, one_row
from app.store.tables import sessions
from app.store.tokens import save_use

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
    of_token = _good(now_s).where(sessions.c.token_id == record.token_id)
    of_token = of_token.order_by(sessions.c.created_s.desc(), sessions.c.session_id.desc())
    older = [row.session_id for row in conn.execute(of_token.offset(MAX_PER_TOKEN))]
    conn.execute(update(sessions).where(sessions.c.session_id.in_(older)).values(ended_s=now_s))


def find(conn: Connection, session_id: str) -> SessionRecord | None:
    """The session with this id, good or not."""
    row = conn.execute(select(*_COLUMNS).filter_by(session_id=session_id)).one_or_none()
    return None if row is None else SessionRecord(*row)


def active(
    conn: Connection, project: str, *, now_s: float, token_id: str | None = None
) -> Sequence[SessionRecord]:
    """The project's good sessions, or only those of one token, the newest first."""
    query = _good(now_s).where(*equal(sessions, project=project, token_id=token_id))
    rows = conn.execute(query.order_by(sessions.c.created_s.desc(), sessions.c.session_id))
    return [SessionRecord(*row) for row in rows]


def end(conn: Connection, project: str, session_id: str, *, now_s: float) -> bool:
    """End a session; False if it had ended already. Raises SessionNotFound."""
    key = {"session_id": session_id, "project": project}
    one_row(conn, select(sessions.c.session_id).filter_by(**key), SessionNotFound(session_id))
    ended = update(sessions).filter_by(**key, ended_s=None).values(ended_s=now_s)
    return bool(conn.execute(ended).rowcount)


def mark_used(conn: Connection, session_id: str, *, now_s: float) -> None:
    """Note that the session was used; to the minute, so that it is rarely written."""
    save_use(conn, sessions, now_s, session_id=session_id)


def _good(now_s: float) -> Select[Any]:
    return select(*_COLUMNS).where(sessions.c.ended_s.is_(None), sessions.c.expires_s > now_s)
