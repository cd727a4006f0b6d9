"""Bytes of the database and of each of its tables, with their indexes.

PostgreSQL knows them. Small SQLite files are counted page by page; large ones are estimated from
the newest rows, since counting would read all of the file.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, text

from app.store.database import Store, pragma
from app.store.disk.reusable import DATABASE_BYTES
from app.store.tables import metadata

COUNTED_UP_TO_BYTES = 64 << 20
SAMPLED_ROWS = 100


@dataclass(frozen=True, slots=True)
class TableSizes:
    """Bytes of the whole database, and by table; `are_estimates` where not all rows were seen."""

    database_bytes: int
    tables: dict[str, int]
    are_estimates: bool = False


def read_table_sizes(store: Store) -> TableSizes:
    """Measure all tables; raises StoreUnavailable."""
    with store.read() as conn:
        if conn.dialect.name == "postgresql":
            return _postgres(conn)
        page_bytes = pragma(conn, "page_size")
        total = pragma(conn, "page_count") * page_bytes
        compiled = conn.exec_driver_sql("SELECT sqlite_compileoption_used('ENABLE_DBSTAT_VTAB')")
        if compiled.scalar_one() and total <= COUNTED_UP_TO_BYTES:
            return TableSizes(total, _counted(conn))
        used_bytes = total - pragma(conn, "freelist_count") * page_bytes
        return TableSizes(total, _estimated(conn, used_bytes, page_bytes), are_estimates=True)


def _postgres(conn: Connection) -> TableSizes:
    rows = conn.execute(
        text("SELECT relname, pg_total_relation_size(oid) FROM pg_class "
             "WHERE relnamespace = current_schema()::regnamespace AND relname = ANY(:names)"),
        {"names": list(metadata.tables)},
    )  # fmt: skip
    by_table = {name: int(number) for name, number in rows}
    return TableSizes(conn.execute(DATABASE_BYTES).scalar_one(), by_table)


def _counted(conn: Connection) -> dict[str, int]:
    rows = conn.exec_driver_sql(
        "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat s JOIN sqlite_schema m ON m.name = s.name "
        "WHERE s.aggregate = TRUE GROUP BY m.tbl_name"
    )
    sizes = {name: int(number) for name, number in rows}
    return {name: sizes[name] for name in metadata.tables if name in sizes}


def _estimated(conn: Connection, used_bytes: int, page_bytes: int) -> dict[str, int]:
    """A page for every table and index; the rest by rows times the mean size of the newest ones."""
    weights = {name: _rows_weight(conn, name) for name in metadata.tables}
    trees = "SELECT tbl_name, count(*) FROM sqlite_schema WHERE rootpage > 0 GROUP BY tbl_name"
    least = {name: count * page_bytes for name, count in conn.exec_driver_sql(trees)}
    rest_bytes, total = max(0, used_bytes - sum(least.values())), sum(weights.values()) or 1
    return {
        name: least.get(name, 0) + rest_bytes * weight // total for name, weight in weights.items()
    }


def _rows_weight(conn: Connection, name: str) -> int:
    columns = metadata.tables[name].c
    size = " + ".join(f'coalesce(length("{column.name}"), 1)' for column in columns)
    rows, mean = conn.exec_driver_sql(
        f'SELECT coalesce((SELECT max(rowid) - min(rowid) + 1 FROM "{name}"), 0), '  # noqa: S608
        f'coalesce((SELECT avg(size) FROM (SELECT {size} AS size FROM "{name}" '
        f"ORDER BY rowid DESC LIMIT {SAMPLED_ROWS})), 0)"
    ).one()
    return int(rows * (mean + 8 * len(columns)))
