"""Space of deleted rows: a vacuum of PostgreSQL makes it reusable; a SQLite file gives it back.

PostgreSQL's own vacuum comes when a fifth of a table is dead, which of a disk of 100 GB may be 20.
A SQLite file that was made without incremental vacuum reuses its free pages, but does not shrink.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from sqlalchemy import text

from app.errors import Unavailable
from app.store.database import Store, pragma
from app.store.disk.reusable import read_toast_tables

log = structlog.get_logger()

# Share of a TOAST table's room that is dead when it is vacuumed: each vacuum reads the whole index.
DUE_FROM = 0.02
_LOOK_EVERY_S = 0.5


def _never() -> bool:
    return False


def vacuum_tables(store: Store, is_stopped: Callable[[], bool] = _never) -> list[str]:
    """Vacuum the tables with many dead blobs, or of which that is not known; return their names.

    Outside a transaction, slowed down as PostgreSQL's own vacuum is; others read and write
    meanwhile. It may take minutes, and ends early once `is_stopped` says so. Nothing on SQLite.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    if store.is_sqlite:
        return []
    with store.read() as conn:
        toasts = read_toast_tables(conn)
    due = [toast.name for toast in toasts if toast.dead_share >= DUE_FROM or not toast.is_vacuumed]
    done = []
    for name in due:
        if is_stopped():
            break
        try:
            _vacuum(store, name, is_stopped)
        except Unavailable:
            if is_stopped():
                break
            raise
        log.info("table vacuumed", table=name)
        done.append(name)
    return done


def _vacuum(store: Store, table: str, is_stopped: Callable[[], bool]) -> None:
    with store.outside_transactions() as conn:
        driver = conn.connection.driver_connection
        # Closed afterwards: the pool must not hand out a connection without a time limit.
        conn.detach()
        conn.execute(text("SET statement_timeout = 0"))
        conn.execute(text("SET vacuum_cost_delay = '2ms'"))
        quoted = conn.dialect.identifier_preparer.quote(table)
        with _cancelling(driver, is_stopped):
            # A table that PostgreSQL or another process is vacuuming already is skipped.
            conn.execute(text(f"VACUUM (SKIP_LOCKED) {quoted}"))


@contextmanager
def _cancelling(driver: Any, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Cancel the statement inside once `is_stopped` says so: a process that ends waits for it."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_EVERY_S):
            if is_stopped():
                # Again until it is over: the first may come before it has begun.
                with suppress(Exception):  # without a server the statement ends, too
                    driver.cancel()

    thread = threading.Thread(target=watch, name="vacuum-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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
            if pragma(conn, "auto_vacuum") != _INCREMENTAL:
                return
            num_pages, num_free = pragma(conn, "page_count"), pragma(conn, "freelist_count")
            kept = max(_MIN_KEPT_PAGES, int(_KEPT_SHARE * num_pages))
            wanted = min(_BATCH_PAGES, num_free - kept)
            if wanted <= 0:
                return
            # It frees a page each time that the driver asks for a row, of which there is none.
            driver: Any = conn.connection.driver_connection
            driver.execute(f"PRAGMA incremental_vacuum({wanted})").fetchall()
            freed = num_pages - pragma(conn, "page_count")
            size_bytes = freed * pragma(conn, "page_size")
        yield size_bytes
