"""The size of a SQLite file: pages that retention has freed go back to the disk.

A file that was made without incremental vacuum reuses its free pages, but does not shrink.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection

from app.store.database import Store

# Pages of a transaction, of 4 kB each.
_BATCH_PAGES = 250
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


def _number(conn: Connection, pragma: str) -> int:
    return int(conn.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())
