"""Tokens: what each may do, in which project.

A token is pl_, a readable id, _, and a secret. Of the secret only a digest is stored.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, get_args

from sqlalchemy import Connection, Table, or_, select, update

from app.errors import InvalidRequest, TokenNotFound
from app.store import projects
from app.store.database import ListOrder, one_row
from app.store.tables import tokens
from app.trace.job import MAX_JOB_CHARS, is_job_name

Scope = Literal["ingest", "read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
MAX_NAME = 256
_WANTED = f"want one or more of {', '.join(SCOPES)}"
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret; `job`, if set, is the only job it is valid for."""

    token_id: str
    project: str
    name: str
    scopes: tuple[Scope, ...]
    job: str | None
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    last_used_s: float | None  # to the minute
    digest: str = field(repr=False)

    def is_good(self, now_s: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to create.

    Raises:
        InvalidRequest: a field is invalid.
    """

    project: str
    name: str
    scopes: Sequence[Scope]
    job: str | None = None
    expires_s: float | None = None

    def __post_init__(self) -> None:
        if not self.scopes:
            raise InvalidRequest(f"scopes: {_WANTED}")
        if len(self.name) > MAX_NAME or not self.name.isprintable():
            raise InvalidRequest(f"name: want at most {MAX_NAME} characters that can be printed")
        if self.job is not None and not is_job_name(self.job):
            raise InvalidRequest(
                f"job {self.job!r}: want at most {MAX_JOB_CHARS} letters, digits, dots, hyphens "
                "and underscores, the first a letter or digit"
            )
        if self.job is not None and set(self.scopes) != {"ingest"}:
            raise InvalidRequest("a token for one job has the scope ingest and no other")


def checked_scopes(names: Sequence[str]) -> list[Scope]:
    """The scopes of these names; raises InvalidRequest if there is no such scope."""
    unknown = [name for name in names if name not in SCOPES]
    if unknown:
        raise InvalidRequest(f"no scope {unknown[0]!r}: {_WANTED}")
    return [scope for scope in SCOPES if scope in names]


_TOKEN_COLUMNS = tuple(tokens.c[name] for name in TokenRecord.__slots__)
_ORDER = ListOrder((tokens.c.token_id,), tuple[str], newest_first=False)


def create(conn: Connection, wanted: NewToken, *, now_s: float) -> tuple[TokenRecord, str]:
    """Create a token, and its project if new; returns it and its text, which is not stored.

    Raises:
        InvalidRequest: the project name is invalid.
    """
    projects.create_if_missing(conn, wanted.project, now_s=now_s)
    text = new_token()
    record = TokenRecord(
        token_id=text.token_id,
        created_s=now_s,
        revoked_s=None,
        last_used_s=None,
        digest=text.digest,
        **asdict(wanted) | {"scopes": tuple(scope for scope in SCOPES if scope in wanted.scopes)},
    )
    conn.execute(tokens.insert().values(asdict(record)))
    return record, str(text)


def find(conn: Connection, token_id: str) -> TokenRecord | None:
    """The token with this id, valid or not."""
    row = conn.execute(select(*_TOKEN_COLUMNS).filter_by(token_id=token_id)).one_or_none()
    return None if row is None else TokenRecord(*row)


def page(
    conn: Connection, project: str, *, cursor: str | None = None, limit: int = 100
) -> tuple[list[TokenRecord], str | None]:
    """A project's tokens in the order of their ids, and the cursor of the next page."""
    query = select(*_TOKEN_COLUMNS).where(tokens.c.project == project)
    rows, more = _ORDER.page(conn, query, cursor, limit)
    return [TokenRecord(*row) for row in rows], more


def all_tokens(conn: Connection) -> list[TokenRecord]:
    """All tokens of all projects, for the operator."""
    query = select(*_TOKEN_COLUMNS).order_by(tokens.c.project, tokens.c.token_id)
    return [TokenRecord(*row) for row in conn.execute(query)]


def revoke(conn: Connection, project: str, token_id: str, *, now_s: float) -> bool:
    """Revoke a token; False if it was revoked already. Raises TokenNotFound."""
    key = {"token_id": token_id, "project": project}
    one_row(conn, select(tokens.c.token_id).filter_by(**key), TokenNotFound(token_id))
    revoked = update(tokens).filter_by(**key, revoked_s=None).values(revoked_s=now_s)
    return bool(conn.execute(revoked).rowcount)


def mark_used(conn: Connection, token_id: str, *, now_s: float) -> None:
    """Note that the token was used; to the minute, so that it is rarely written."""
    save_use(conn, tokens, now_s, token_id=token_id)


def save_use(conn: Connection, table: Table, now_s: float, **key: str) -> None:
    """Save the minute of its use in a row of a table, unless it was used later."""
    minute_s, last_s = used_minute_s(now_s), table.c.last_used_s
    older = update(table).filter_by(**key).where(or_(last_s.is_(None), last_s < minute_s))
    conn.execute(older.values(last_used_s=minute_s))


def used_minute_s(now_s: float) -> float:
    """The minute, in Unix seconds, as `last_used_s` names it."""
    return now_s // _MINUTE_S * _MINUTE_S


_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS = 10
_SECRET_CHARS = 43  # 62 ** 43 is more than 2 ** 256
_TOKEN_PATTERN = re.compile(rf"pl_([0-9A-Za-z]{{{_ID_CHARS}}})_([0-9A-Za-z]{{{_SECRET_CHARS}}})")


class TokenText(NamedTuple):
    """The two parts of a token."""

    token_id: str
    secret: str

    def __str__(self) -> str:
        return f"pl_{self.token_id}_{self.secret}"

    @property
    def digest(self) -> str:
        """The stored digest; of 256 random bits, so it needs no slow hash."""
        return hashlib.sha256(f"paceline token v1:{self}".encode()).hexdigest()


def new_token() -> TokenText:
    """A token that cannot be guessed."""
    return TokenText(_random_text(_ID_CHARS), _random_text(_SECRET_CHARS))


def parse_token(text: str) -> TokenText | None:
    """The parts of a token; None if the text is not one."""
    match = _TOKEN_PATTERN.fullmatch(text)
    return None if match is None else TokenText(*match.groups())


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))
