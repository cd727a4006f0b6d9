"""Which migrations has a database had, and which one is this version's newest?

Without Alembic, which every process would take a fifth of a second to load, and none but the one
that migrates has a use for.
"""

from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

import app
from app.store.engine import Store

_TABLE = table("alembic_version", column("version_num"))


def is_current(url: str) -> bool:
    """Whether the database has exactly this version's tables.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    store = Store(url)
    try:
        with store.read() as conn:
            return current_revision(conn) == newest_revision()
    finally:
        store.close()


def current_revision(conn: Connection) -> str | None:
    """The newest migration that the database has had; None before the first."""
    if not inspect(conn).has_table(_TABLE.name):
        return None
    found: str | None = conn.execute(select(_TABLE.c.version_num)).scalar()
    return found


def newest_revision() -> str | None:
    """The newest migration that this version knows: its number begins its file's name."""
    names = (path.name for path in (migrations_dir() / "versions").glob("[0-9]*_*.py"))
    return max((name.split("_")[0] for name in names), default=None)


def migrations_dir() -> Path:
    """Where the migrations are: beside the package in a checkout, inside it when installed."""
    package = Path(app.__file__).parent
    installed = package / "_resources" / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"
