"""Space inside the tables of a PostgreSQL that new rows will take before its files grow.

Deleted rows do not make `pg_database_size` smaller. Nearly all bytes are blobs, and these lie in
the tables' TOAST tables, in chunks of which four fill a page. A page with fewer takes another one,
so the room of a TOAST table is four chunks a page, less the chunks of the rows that are there, less
those that are dead until a vacuum has passed (app/store/shrinking/dead_rows.py).

The chunks that are there follow from the sizes of the values, which stand in the rows themselves:
one scan of the rows every ten minutes, without a look into TOAST. In between the server's own
counters of inserted and deleted chunks say what has changed. Neither an extension nor the right to
read TOAST tables is needed. `reltuples` and `n_live_tup` are of no use: vacuum leaves the first as
it was where it has read under 2 % of a table, and sets the second to it.

What is not known counts as taken: TOAST tables that no vacuum has passed since the counters began
(a server that crashes forgets them), or where the scan takes over a minute; and all other space
inside tables and indexes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import BigInteger, Connection, case, cast, column, func, select, table, text

from app.errors import Unavailable
from app.store.database import Store, with_longer_limit
from app.store.tables import metadata

log = structlog.get_logger()

SCAN_EVERY_S = 600.0
# A scan that takes long comes less often: at most so large a part of the time is spent on it.
_MAX_SCAN_SHARE = 0.02
# Smaller TOAST tables count whole.
LEAST_BYTES = 16 << 20
# As PostgreSQL is compiled for pages of 8 kB; where they have another size, nothing is known.
_PAGE_BYTES = 8192
_CHUNKS_A_PAGE = 4
_CHUNK_BYTES = 1996
# Only the largest values of rows over 2 kB go to TOAST. None of ours are so small, with at most ten
# values that could; those in between may or may not be there, and count as if they were.
_LEAST_VALUE_BYTES = 128


@dataclass(frozen=True, slots=True)
class ToastTable:
    """The TOAST table of one of our tables, with the server's counters of its chunks.

    `columns` are the table's that may lie there. `is_vacuumed` says whether a vacuum has passed
    since the counters began; before, `dead_chunks` may be too few.
    """

    name: str
    columns: Sequence[str]
    size_bytes: int
    dead_chunks: int
    inserted: int
    deleted: int
    is_vacuumed: bool

    @property
    def max_chunks(self) -> int:
        """The chunks that it has room for without growing."""
        return self.size_bytes // _PAGE_BYTES * _CHUNKS_A_PAGE

    @property
    def dead_share(self) -> float:
        """Dead chunks as a share of its room, 0 to 1 where the counters are right."""
        return self.dead_chunks / max(1, self.max_chunks)


@dataclass(frozen=True, slots=True)
class DatabaseSpace:
    """Bytes of a database, of its large TOAST tables, and of what new rows will take in these."""

    size_bytes: int
    toast_bytes: int = 0
    free_inside_bytes: int = 0

    def reusable_bytes(self, disk_bytes: int) -> int:
        """Bytes of the space inside that count as free, on a disk of this size.

        New rows take space outside TOAST, too, say in indexes. So no more counts than what fills
        together with the rest of the disk, if new rows lie as those that are there.
        """
        left_bytes = max(0, disk_bytes - self.size_bytes)
        others_bytes = max(1, self.size_bytes - self.toast_bytes)
        return min(self.free_inside_bytes, left_bytes * self.toast_bytes // others_bytes)


@dataclass(frozen=True, slots=True)
class _Scan:
    """Chunks of a table's rows, and the counters read just before."""

    live_chunks: int
    inserted: int
    deleted: int

    def live_now(self, now: ToastTable) -> int | None:
        """Chunks of the rows that are there now; None if the counters have begun anew since."""
        if now.inserted < self.inserted or now.deleted < self.deleted:
            return None
        since = now.inserted - self.inserted - (now.deleted - self.deleted)
        return max(0, self.live_chunks + since)


class SpaceMeter:
    """Measures the space of one database; not for several threads."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._scans: Mapping[str, _Scan | None] = {}  # None: it failed
        self._scan_at_s = float("-inf")

    def read(self, store: Store) -> DatabaseSpace:
        """The space now; a scan of rows blocks up to a minute a table. Raises StoreUnavailable."""
        with store.read() as conn:
            size_bytes = conn.execute(DATABASE_BYTES).scalar_one()
            toasts = read_toast_tables(conn)
        if self._monotonic() >= self._scan_at_s or not self._knows(toasts):
            self._scan(store, toasts)
        return DatabaseSpace(
            size_bytes,
            sum(toast.size_bytes for toast in toasts),
            sum(map(self._free_bytes, toasts)),
        )

    def _knows(self, toasts: list[ToastTable]) -> bool:
        """Whether all were scanned, since their counters began, or cannot be now."""
        for toast in toasts:
            if toast.is_vacuumed and toast.name not in self._scans:
                return False
            scan = self._scans.get(toast.name)
            if scan is not None and scan.live_now(toast) is None:
                return False
        return True

    def _scan(self, store: Store, toasts: list[ToastTable]) -> None:
        begun_s = self._monotonic()
        scans: dict[str, _Scan | None] = {}
        for toast in toasts:
            if not toast.is_vacuumed:
                continue  # nothing would follow from it
            scans[toast.name] = None
            try:
                with store.read() as conn:
                    with_longer_limit(conn)
                    live_chunks = _live_chunks(conn, toast)
                scans[toast.name] = _Scan(live_chunks, toast.inserted, toast.deleted)
            except Unavailable as error:
                reason = str(error)
                log.warning("space inside a table not measured", table=toast.name, reason=reason)
        self._scans = scans
        took_s = self._monotonic() - begun_s
        self._scan_at_s = begun_s + max(SCAN_EVERY_S, took_s / _MAX_SCAN_SHARE)

    def _free_bytes(self, toast: ToastTable) -> int:
        scan = self._scans.get(toast.name)
        live_chunks = scan.live_now(toast) if scan is not None and toast.is_vacuumed else None
        if live_chunks is None:
            return 0
        free_chunks = max(0, toast.max_chunks - live_chunks - toast.dead_chunks)
        return free_chunks * _PAGE_BYTES // _CHUNKS_A_PAGE


DATABASE_BYTES = select(func.pg_database_size(func.current_database()))


def read_toast_tables(conn: Connection) -> list[ToastTable]:
    """The large TOAST tables of our tables; none on a server with pages of another size."""
    parameters = {"names": list(metadata.tables), "least": LEAST_BYTES, "page": str(_PAGE_BYTES)}
    return [ToastTable(**row._mapping) for row in conn.execute(text(_TOAST_TABLES), parameters)]


def _live_chunks(conn: Connection, toast: ToastTable) -> int:
    # The size of a value as it is stored, which its pointer into TOAST says.
    sizes = [func.pg_column_size(column(name)) for name in toast.columns]
    chunks = (
        case((size > _LEAST_VALUE_BYTES, (size + (_CHUNK_BYTES - 1)) // _CHUNK_BYTES), else_=0)
        for size in sizes
    )
    total = cast(func.coalesce(func.sum(sum(chunks)), 0), BigInteger)
    return int(conn.execute(select(total).select_from(table(toast.name))).scalar_one())


_TOAST_TABLES = """
    SELECT c.relname AS name,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND a.attlen = -1 AND a.attstorage <> 'p') AS columns,
           pg_relation_size(t.oid) AS size_bytes,
           pg_stat_get_dead_tuples(t.oid) AS dead_chunks,
           pg_stat_get_tuples_inserted(t.oid) AS inserted,
           pg_stat_get_tuples_deleted(t.oid) AS deleted,
           coalesce(pg_stat_get_last_vacuum_time(t.oid),
                    pg_stat_get_last_autovacuum_time(t.oid)) IS NOT NULL AS is_vacuumed
    FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(:names)
    AND pg_relation_size(t.oid) >= :least AND current_setting('block_size') = :page
    ORDER BY c.relname"""
