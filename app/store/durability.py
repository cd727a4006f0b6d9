"""Does the database keep what it has said it keeps?"""

from sqlalchemy import Connection

from app.errors import StartUpFailed
from app.store.engine import Store

# With any of these off, a crash takes back what was committed, after the queue let go of it.
# setting: (values that are safe, the line to change)
_POSTGRES = {
    "fsync": ({"on"}, "fsync = on"),
    "full_page_writes": ({"on"}, "full_page_writes = on"),
    "synchronous_commit": (
        {"on", "remote_apply", "remote_write", "local"},
        "synchronous_commit = on",
    ),
}
_SQLITE = {
    "journal_mode": ({"wal"}, "PRAGMA journal_mode = wal"),
    "synchronous": ({"2", "3"}, "PRAGMA synchronous = FULL"),
    "foreign_keys": ({"1"}, "PRAGMA foreign_keys = ON"),
}


def weaknesses(store: Store) -> tuple[str, ...]:
    """Why a commit might not survive a crash, a sentence each with the line to change; best: none.

    Raises:
        StoreUnavailable: no answer.
    """
    required = _SQLITE if store.is_sqlite else _POSTGRES
    with store.read() as conn:
        found = {name: _setting(conn, name, is_sqlite=store.is_sqlite) for name in required}
    where = "" if store.is_sqlite else " into postgresql.conf"
    return tuple(
        f"the database would lose commits in a crash: {name} is {found[name]}, put '{line}'{where}"
        for name, (safe, line) in required.items()
        if found[name] not in safe
    )


def check_durable(store: Store) -> None:
    """Returns when a commit survives a crash.

    Raises:
        StartUpFailed: the database is set up to lose commits; the message names the setting.
        StoreUnavailable: no answer.
    """
    if found := weaknesses(store):
        raise StartUpFailed("; ".join(found))


def _setting(conn: Connection, name: str, *, is_sqlite: bool) -> str:
    statement = f"PRAGMA {name}" if is_sqlite else f"SHOW {name}"
    return str(conn.exec_driver_sql(statement).scalar_one())
