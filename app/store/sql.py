"""SQL that several modules share: upserts for either dialect, and pages of a list.

A page's cursor is the key of its last row, so that no row is missed or repeated.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Insert, Select, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from app.errors import InvalidRequest
from app.store.tables import alert_groups

T = TypeVar("T")


def insert(conn: Connection, table: Table) -> postgresql.Insert:
    """An insert statement that knows ON CONFLICT."""
    return _insert_statement(conn.dialect.name, table)


def insert_new(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows whose key is not there yet."""
    if rows:
        conn.execute(insert(conn, table).on_conflict_do_nothing(), rows)


def insert_or_replace(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows, over those that have the same primary key."""
    if rows:
        conn.execute(_replace_statement(conn.dialect.name, table), rows)


@cache
def _replace_statement(dialect: str, table: Table) -> Insert:
    # Cached: building it takes longer than executing it for a few rows.
    statement = _insert_statement(dialect, table)
    key = list(table.primary_key.columns)
    new = {column.name: statement.excluded[column.name] for column in table.c if column not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=new)


def _insert_statement(dialect: str, table: Table) -> postgresql.Insert:
    if dialect == "sqlite":
        return cast(postgresql.Insert, sqlite.insert(table))  # the same methods
    return postgresql.insert(table)


MAX_ROWS = 500  # per statement: PostgreSQL takes 65,535 parameters, SQLite half as many


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in parts that fit into one statement."""
    for at in range(0, len(rows), MAX_ROWS):
        yield rows[at : at + MAX_ROWS]


def rows_of_group(table: Table) -> Select[Any]:
    """The rows of a table that belong to an alert group of the outer query: same job and rule."""
    same = (table.c[name] == alert_groups.c[name] for name in ("job_id", "rule"))
    return select(table.c.job_id).where(*same)


# Values outside the range of columns cannot be from a cursor of ours.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
JobId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]+\Z")]


def to_cursor(*key: Any) -> str:
    """The cursor of the row with this key: an opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def from_cursor(cursor: str, shape: type[T]) -> T:
    """The key in a cursor, checked against its shape (a tuple type).

    Raises:
        InvalidRequest: it is no cursor of this list.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=shape)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidRequest("the cursor is not one that this list gave out") from None


def split_page(rows: list[T], limit: int) -> tuple[list[T], bool]:
    """The page, and whether more rows follow; query one row more than the limit."""
    return rows[:limit], len(rows) > limit
