"""The size of a SQLite file: pages that retention has freed go back to the disk.

A file that an earlier release made reuses its free pages, but does not shrink until it has been
rewritten once (`rewrite_file`).
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, text

from app.errors import Conflict
from app.store.database import Store

# Pages of a transaction, of 4 kB each.
_BATCH_PAGES = 1000
# Some free pages are left for the rows to come: this share of the file, or so many.
_KEPT_SHARE = 0.02
_MIN_KEPT_PAGES = 4096
_INCREMENTAL = 2


def give_back_free_pages(store: Store) -> Iterator[int]:
    """Shrink a SQLite file by a few pages an iteration; yields the bytes. Nothing elsewhere."""
    if not store.is_sqlite:
        return
    while True:
        with store.write() as conn:
            if _number(conn, "auto_vacuum") != _INCREMENTAL:
                return
            num_pages, num_free = (_number(conn, f"{name}_count") for name in ("page", "freelist"))
            kept = max(_MIN_KEPT_PAGES, int(_KEPT_SHARE * num_pages))
            wanted = min(_BATCH_PAGES, num_free - kept)
            if wanted <= 0:
                return
            # It frees a page each time that the driver asks for a row, of which there is none.
            driver: Any = conn.connection.driver_connection
            driver.execute(f"PRAGMA incremental_vacuum({wanted})").fetchall()
            freed = num_pages - _number(conn, "page_count")
            size_bytes = freed * _number(conn, "page_size")
        yield size_bytes


def rewrite_file(store: Store) -> tuple[int, int]:
    """Rewrite a SQLite file without free pages; from then on it shrinks by itself.

    Nothing else can write meanwhile, and the disk needs room for a second file.

    Returns:
        Its size before and afterwards, bytes.

    Raises:
        Conflict: the database is not SQLite.
        StoreUnavailable: something else is writing.
    """
    if not store.is_sqlite:
        raise Conflict("only SQLite files are rewritten: PostgreSQL reuses free space by itself")
    with store.read() as conn:
        before = _size_bytes(conn)
    with store.outside_transactions() as conn:
        conn.execute(text(f"PRAGMA auto_vacuum={_INCREMENTAL}"))
        conn.execute(text("VACUUM"))
    with store.read() as conn:
        return before, _size_bytes(conn)


def _size_bytes(conn: Connection) -> int:
    return _number(conn, "page_count") * _number(conn, "page_size")


def _number(conn: Connection, pragma: str) -> int:
    return int(conn.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())
