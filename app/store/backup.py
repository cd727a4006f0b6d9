"""Backup and restore: all tables in one file, for either kind of database.

A zip file: `tables/NAME.jsonl` with one JSON object per row (bytes in base64), and
`manifest.json` with format, migration, version, and the number of rows of each table. Leases, live
consumers and sessions are left out. Secrets are in it as they are in the database, encrypted.

A backup of an older release, from `migrations.OLDEST_RELEASE` on, is restored into the tables that
it was made of, which are migrated then. Nothing in a file is believed: names, types, sizes and
numbers of rows are checked, and nothing is unpacked to disk.
"""

import base64
import importlib.metadata
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    delete,
    func,
    select,
    true,
)
from sqlalchemy.exc import StatementError

from app.errors import InvalidRequest, StartUpFailed
from app.store.alerting.tables import all_tables
from app.store.columns import JsonText, PackedJson, is_bytes, with_plain_values
from app.store.database import VERSION_TABLE, Store, current_revision, without_time_limits
from app.store.migrations import (
    OLDEST_RELEASE,
    downgrade_within,
    is_too_old,
    known_revisions,
    upgrade_within,
)
from app.store.projects import owns
from app.store.tables import (
    consumers,
    disk_samples,
    projects,
    refusals,
    service_watches,
    sessions,
    shards,
    totals,
)
from app.trace.job import CANARY_PROJECT

_FORMAT = 1
# Of these processes, their sessions and this disk only.
_LEFT_OUT = (shards, consumers, refusals, sessions, disk_samples, service_watches)
_TABLES = [table for table in all_tables.sorted_tables if table not in _LEFT_OUT]
# Rows that are there before anybody has done anything with the database: the backup's take their
# place. The project is the one that the migrations create, if unchanged.
_ROWS_OF_A_NEW_DATABASE: dict[Table, ColumnElement[bool]] = {
    totals: true(),
    projects: and_(
        projects.c.project == "default",
        projects.c.keep_raw_days.is_(None),
        projects.c.keep_results_days.is_(None),
        projects.c.keep_gb.is_(None),
    ),
}
# Few, since a row of windows may be several MB.
_ROWS_AT_ONCE = 50
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 1 << 20
# Rows of real jobs are packed at 20:1 at most; a bomb is at 1000:1.
_MAX_RATIO = 250
_SMALL_BYTES = 1 << 16
_MAX_ROW_BYTES = 2 << 30
_BATCH_BYTES = 64 << 20
# What reading a file can raise that is cut, changed, or made to do harm.
_FILE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,  # encrypted, nested too deeply
    NotImplementedError,
    msgspec.MsgspecError,
)


class BackupManifest(msgspec.Struct, forbid_unknown_fields=True):
    """The manifest of a backup."""

    format: int
    revision: str | None
    version: str
    rows: dict[str, int]


def backup(store: Store, path: Path) -> BackupManifest:
    """Write a consistent snapshot of all tables to a file, atomically."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            manifest = _write_zip(store, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return manifest


def restore(store: Store, path: Path) -> BackupManifest:
    """Fill an empty, migrated database from a backup; all of it or nothing.

    A database without jobs and tokens counts as empty, even if processes have run on it, and
    the canary.

    Raises:
        InvalidRequest: the file is no backup, is of a newer release or of before `OLDEST_RELEASE`,
            or the database is not empty.
    """
    try:
        with zipfile.ZipFile(path) as archive, store.write() as conn:
            without_time_limits(conn)
            manifest = _read_manifest(archive)
            _check_known(manifest)
            _empty(conn)
            with _tables_of(conn, manifest) as tables:
                _check_members(archive, manifest, tables)
                for table in tables:
                    if table.name in all_tables.tables:  # this version may have dropped it
                        _fill(conn, table, archive, manifest.rows[table.name])
            _restart_sequences(conn)
    except StartUpFailed as error:
        raise InvalidRequest(
            f"{path.name} has secrets that are not encrypted: restore it with release "
            f"{OLDEST_RELEASE} and PACELINE_SECRET_KEY, and back that database up"
        ) from error
    except _FILE_ERRORS as error:
        raise InvalidRequest(f"{path.name} is no whole backup: {error}") from error
    except StatementError as error:
        raise InvalidRequest(
            f"{path.name} is no whole backup: a row breaks a rule of its table "
            f"({type(error).__name__})"
        ) from error
    store.forget_log()
    return manifest


def _write_zip(store: Store, file: Any) -> BackupManifest:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, store.snapshot() as conn:
        without_time_limits(conn)
        rows = {table.name: _write_table(conn, table, archive) for table in _TABLES}
        version = importlib.metadata.version("paceline")
        manifest = BackupManifest(_FORMAT, current_revision(conn), version, rows)
        archive.writestr(_MANIFEST, msgspec.json.encode(manifest))
    return manifest


def _write_table(conn: Connection, table: Table, archive: zipfile.ZipFile) -> int:
    query = select(*map(with_plain_values, table.c)).order_by(*table.primary_key.columns)
    rows = conn.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
    num_rows = 0
    with archive.open(_archive_name(table), "w", force_zip64=True) as lines:
        for row in rows:
            values = {name: _to_json(value) for name, value in row._mapping.items()}
            lines.write(json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            num_rows += 1
    return num_rows


def _read_manifest(archive: zipfile.ZipFile) -> BackupManifest:
    if archive.getinfo(_MANIFEST).file_size > _MAX_MANIFEST_BYTES:
        raise ValueError("its manifest is too large")
    manifest = msgspec.json.decode(archive.read(_MANIFEST), type=BackupManifest)
    if manifest.format != _FORMAT:
        raise InvalidRequest(f"the backup has format {manifest.format}; this version reads 1")
    return manifest


def _check_known(manifest: BackupManifest) -> None:
    if manifest.revision in known_revisions():
        return
    if manifest.revision is not None and is_too_old(manifest.revision):
        raise InvalidRequest(
            f"the backup is of revision {manifest.revision}, of before release {OLDEST_RELEASE}: "
            f"restore it with release {OLDEST_RELEASE}, and back that database up"
        )
    raise InvalidRequest(
        f"the backup is of revision {manifest.revision} (Paceline {manifest.version}), which "
        "this version does not know: restore it with that version"
    )


def _empty(conn: Connection) -> None:
    for table, rows in _ROWS_OF_A_NEW_DATABASE.items():
        conn.execute(delete(table).where(rows))
    for table in reversed(_TABLES):
        _remove_canary(conn, table)
    for table in _TABLES:
        if conn.execute(select(*table.primary_key.columns).limit(1)).first() is not None:
            raise InvalidRequest(f"the database is not empty: its table {table.name} has rows")


def _remove_canary(conn: Connection, table: Table) -> None:
    """Processes that have run have pushed it; the backup's own takes its place."""
    if "job_id" in table.c:
        conn.execute(delete(table).where(owns(CANARY_PROJECT, table.c.job_id)))
    elif "project" in table.c:
        conn.execute(delete(table).where(table.c.project == CANARY_PROJECT))


@contextmanager
def _tables_of(conn: Connection, manifest: BackupManifest) -> Iterator[list[Table]]:
    """The tables that the backup was made of, while they are those of the database."""
    if manifest.revision is None or manifest.revision == current_revision(conn):
        yield _TABLES
        return
    downgrade_within(conn, manifest.revision)
    then = MetaData()
    then.reflect(conn)
    names = {table.name for table in (*_LEFT_OUT, VERSION_TABLE)}
    tables = [table for table in then.sorted_tables if table.name not in names]
    for table in tables:
        _with_our_types(table)
    yield tables
    upgrade_within(conn)


def _with_our_types(table: Table) -> None:
    """Give a reflected table the types that pack and unpack its values."""
    ours = all_tables.tables.get(table.name, table)
    for column in table.c:
        if column.name in ours.c:
            column.type = ours.c[column.name].type
        elif isinstance(column.type, String):  # this version has dropped it: it may have been JSON
            column.type = JsonText()


def _check_members(
    archive: zipfile.ZipFile, manifest: BackupManifest, tables: Sequence[Table]
) -> None:
    """Raise ValueError unless the file has these tables and nothing else, and is no bomb."""
    if manifest.rows.keys() != {table.name for table in tables}:
        raise ValueError("its manifest names other tables than a backup of that revision has")
    if sorted(archive.namelist()) != sorted([_MANIFEST, *map(_archive_name, tables)]):
        raise ValueError("it holds other files than a backup does")
    for member in archive.infolist():
        if member.file_size > _MAX_RATIO * max(member.compress_size, _SMALL_BYTES):
            raise ValueError(f"{member.filename} would be {member.file_size:,} bytes: it is a bomb")


def _fill(conn: Connection, table: Table, archive: zipfile.ZipFile, num_rows: int) -> None:
    filled = 0
    for lines in _batches(archive, _archive_name(table)):
        rows = [_row(table, line) for line in lines]
        conn.execute(table.insert(), rows)
        filled += len(rows)
    if filled != num_rows:
        raise ValueError(f"{table.name} has {filled} rows instead of {num_rows}")


def _batches(archive: zipfile.ZipFile, name: str) -> Iterator[list[bytes]]:
    """The lines of a member, a few at a time, fewer if they are long."""
    limit = _max_row_bytes()
    batch: list[bytes] = []
    size_bytes = 0
    with archive.open(name) as file:
        while line := file.readline(limit + 1):
            if len(line) > limit:
                raise ValueError(f"a row of {name} is longer than {limit:,} bytes")
            batch.append(line)
            size_bytes += len(line)
            if len(batch) == _ROWS_AT_ONCE or size_bytes > _BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
    if batch:
        yield batch


def _max_row_bytes() -> int:
    """Longest row: one of a window of 24 million operations has more than a gigabyte."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_MAX_ROW_BYTES, memory_bytes // 8)


def _row(table: Table, line: bytes) -> dict[str, Any]:
    values = msgspec.json.decode(line, type=dict[str, Any])
    if values.keys() != set(table.c.keys()):
        raise ValueError(f"a row of {table.name} has other columns")
    return {column.name: _checked_value(column, values[column.name]) for column in table.c}


def _restart_sequences(conn: Connection) -> None:
    # Restored ids were not drawn from PostgreSQL's sequence: it would hand them out again.
    if conn.dialect.name == "postgresql":
        for table in _TABLES:
            if (serial := table.autoincrement_column) is not None:
                newest = select(func.max(serial)).scalar_subquery()
                sequence = func.pg_get_serial_sequence(table.name, serial.name)
                at = func.setval(sequence, func.coalesce(newest, 1), newest.is_not(None))
                conn.execute(select(at))


def _archive_name(table: Table) -> str:
    return f"tables/{table.name}.jsonl"


def _to_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _checked_value(column: Column[Any], value: Any) -> Any:
    """The value as its column takes it; raises ValueError if it is of another type or too long."""
    kind = column.type
    if value is None:
        is_fine = bool(column.nullable)
    elif is_bytes(kind):
        is_fine = isinstance(value, str)
        value = base64.b64decode(value, validate=True) if is_fine else None
    elif isinstance(kind, JsonText | PackedJson):
        is_fine = True
    elif isinstance(kind, Boolean):
        is_fine = isinstance(value, bool)
    elif isinstance(kind, Integer):
        is_fine = type(value) is int and -(2**63) <= value < 2**63
    elif isinstance(kind, String):
        is_short = isinstance(value, str) and len(value) <= (kind.length or len(value))
        is_fine = is_short and "\0" not in value
    else:
        is_fine = type(value) in (int, float)
    if not is_fine:
        raise ValueError(f"a row of {column.table.name} has no right value for {column.name}")
    return value
