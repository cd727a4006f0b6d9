"""Dead rows of PostgreSQL: after retention has deleted much, a vacuum makes their space reusable.

PostgreSQL's own vacuum comes when a fifth of a table is dead, which of a disk of 100 GB may be 20.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from sqlalchemy import text

from app.errors import Unavailable
from app.store.database import Store
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
        found = read_toast_tables(conn)
    due = [toast.name for toast in found if toast.dead_share >= DUE_FROM or not toast.is_vacuumed]
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
            # Where PostgreSQL's own, or another process, is at it already there is nothing to do.
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
