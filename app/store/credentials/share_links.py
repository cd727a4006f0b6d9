"""Share links: frozen reports of jobs, readable with the link alone until it expires.

The link's token is kept nowhere; only a digest of it is stored. The report is stored compressed.
"""

import hashlib
import secrets
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import Connection, func, select, update

from app.errors import Conflict, ShareLinkNotFound, TooLarge
from app.store.alerting.alerts import MAX_ACTOR
from app.store.columns import clipped
from app.store.database import HexId, ListOrder, equal, new_id, one_row
from app.store.tables import share_links

# Of a project, neither expired nor revoked.
MAX_LINKS = 200
MAX_PAGE_BYTES = 8 << 20
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A link to a report of these steps as they were at `created_s`; times are Unix seconds."""

    share_id: str
    project: str
    job_id: str
    author: str
    created_s: float
    expires_s: float
    revoked_s: float | None
    window_id: str
    first_step: int
    last_step: int
    size_bytes: int  # of the report, not compressed

    def is_good(self, now_s: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_s is None and now_s < self.expires_s


@dataclass(frozen=True, slots=True)
class NewShareLink:
    """A link to make; `page` is the report's HTML."""

    project: str
    job_id: str
    author: str
    expires_s: float
    window_id: str
    first_step: int
    last_step: int
    page: bytes


_TABLE = share_links
_COLUMNS = tuple(_TABLE.c[field.name] for field in fields(ShareLink))
_ORDER = ListOrder((_TABLE.c.created_s, _TABLE.c.share_id), tuple[float, HexId])


def create(conn: Connection, wanted: NewShareLink, *, now_s: float) -> tuple[ShareLink, str]:
    """Save the report; returns the link and its token, which is not stored.

    Raises:
        TooLarge: the report has more than MAX_PAGE_BYTES.
        Conflict: the project has MAX_LINKS links.
    """
    size_bytes = len(wanted.page)
    if size_bytes > MAX_PAGE_BYTES:
        raise TooLarge(
            f"the report has {size_bytes:,} bytes, over the limit of {MAX_PAGE_BYTES:,}: "
            "share fewer windows"
        )
    good = (_TABLE.c.project == wanted.project, *_is_good(now_s))
    number = conn.execute(select(func.count()).select_from(_TABLE).where(*good)).scalar_one()
    if number >= MAX_LINKS:
        raise Conflict(f"the project has {MAX_LINKS} share links, the maximum: revoke one first")
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    given = asdict(wanted) | {"author": clipped(wanted.author, MAX_ACTOR)}
    del given["page"]
    made = ShareLink(
        share_id=new_id(),
        created_s=now_s,
        revoked_s=None,
        size_bytes=size_bytes,
        **given,
    )
    conn.execute(_TABLE.insert().values(digest=_digest(token), page=wanted.page, **asdict(made)))
    return made, token


def find_page(conn: Connection, token: str, *, now_s: float) -> tuple[ShareLink, bytes]:
    """The good link with this token, and its report; raises ShareLinkNotFound if there is none."""
    is_of_token = (_TABLE.c.digest == _digest(token), _TABLE.c.page.is_not(None))
    query = select(*_COLUMNS, _TABLE.c.page).where(*is_of_token, *_is_good(now_s))
    *link, page = one_row(conn, query, ShareLinkNotFound())
    return ShareLink(*link), page


def get(conn: Connection, project: str, share_id: str) -> ShareLink:
    """One of a project's links, good or not; raises ShareLinkNotFound."""
    query = select(*_COLUMNS).filter_by(project=project, share_id=share_id)
    return ShareLink(*one_row(conn, query, ShareLinkNotFound(share_id)))


def page(
    conn: Connection,
    project: str,
    *,
    job_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[ShareLink], str | None]:
    """A project's links, or those of one job, the newest first, and the next page's cursor."""
    query = select(*_COLUMNS).where(*equal(_TABLE, project=project, job_id=job_id))
    rows, more = _ORDER.page(conn, query, cursor, limit)
    return [ShareLink(*row) for row in rows], more


def revoke(conn: Connection, project: str, share_id: str, *, now_s: float) -> bool:
    """Revoke a link and delete its report; False if it was revoked already; raises as `get`."""
    get(conn, project, share_id)
    good = update(_TABLE).filter_by(share_id=share_id, revoked_s=None)
    revoked = good.values(revoked_s=now_s, page=None)
    return bool(conn.execute(revoked).rowcount)


def _is_good(now_s: float) -> tuple[Any, ...]:
    return _TABLE.c.revoked_s.is_(None), _TABLE.c.expires_s > now_s


def _digest(token: str) -> str:
    """The stored digest; of 256 random bits, so it needs no slow hash."""
    return hashlib.sha256(f"paceline share link v1:{token}".encode()).hexdigest()
