"""Insert, or replace what has the same key: both databases can, each by its own dialect."""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert(conn: Connection, table: Table) -> postgresql.Insert:
    """An insert statement that knows ON CONFLICT."""
    return _insert(conn.dialect.name, table)


def add_new(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows whose key is not there yet."""
    if rows:
        conn.execute(insert(conn, table).on_conflict_do_nothing(), rows)


def replace(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows, over those that have the same primary key."""
    if rows:
        conn.execute(_replacing(conn.dialect.name, table), rows)


@cache
def _replacing(dialect: str, table: Table) -> Insert:
    # Made once: making it takes longer than executing it for a few rows.
    statement = _insert(dialect, table)
    key = list(table.primary_key.columns)
    new = {column.name: statement.excluded[column.name] for column in table.c if column not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=new)


def _insert(dialect: str, table: Table) -> postgresql.Insert:
    if dialect == "sqlite":
        return cast(postgresql.Insert, sqlite.insert(table))  # the same methods
    return postgresql.insert(table)
