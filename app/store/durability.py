"""Does the database keep what it has said it keeps?"""

from sqlalchemy import Connection

from app.errors import StartUpFailed
from app.store.engine import Store

# With any of these off, a crash takes back what was committed, after the queue let go of it.
_POSTGRES = {"fsync": {"on"}, "full_page_writes": {"on"}}
_POSTGRES["synchronous_commit"] = {"on", "remote_apply", "remote_write", "local"}
_SQLITE = {"journal_mode": {"wal"}, "synchronous": {"2", "3"}, "foreign_keys": {"1"}}


def check_durable(store: Store) -> None:
    """Returns when a commit survives a crash.

    Raises:
        StartUpFailed: the database is set up to lose commits; the message names the setting.
    """
    with store.read() as conn:
        for name, safe in (_SQLITE if store.is_sqlite else _POSTGRES).items():
            found = _setting(conn, name, is_sqlite=store.is_sqlite)
            if found not in safe:
                raise StartUpFailed(
                    f"the database would lose commits in a crash: {name} is {found}, "
                    f"want {min(safe)}"
                )


def _setting(conn: Connection, name: str, *, is_sqlite: bool) -> str:
    statement = f"PRAGMA {name}" if is_sqlite else f"SHOW {name}"
    return str(conn.exec_driver_sql(statement).scalar_one())
