"""Backup and restore: all tables in one file, for either kind of database.

A zip file: `tables/NAME.jsonl` with one JSON object per row (bytes in base64), and
`manifest.json` with format, migration, version, and the number of rows of each table. Leases and
live consumers are left out.
"""

import base64
import importlib.metadata
import json
import os
import tempfile
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select, true

from app.errors import InvalidRequest
from app.store.alerting.tables import alert_events, all_tables, delivery_attempts, outbox
from app.store.columns import is_bytes
from app.store.database import Store, current_revision, without_time_limits
from app.store.tables import (
    audit,
    consumers,
    dead_letters,
    disk_samples,
    projects,
    shards,
    totals,
)

_FORMAT = 1
# Of these processes and this disk only.
_LEFT_OUT = (shards, consumers, disk_samples)
_TABLES = [table for table in all_tables.sorted_tables if table not in _LEFT_OUT]
_SERIALS = (
    (alert_events, "event_id"),
    (dead_letters, "letter_id"),
    (outbox, "seq"),
    (delivery_attempts, "attempt_id"),
    (audit, "audit_id"),
)
# Rows that are there before anybody has done anything with the database: the backup's take their
# place. The project is the one that the migrations create, if unchanged.
_ROWS_OF_A_NEW_DATABASE: dict[Table, ColumnElement[bool]] = {
    totals: true(),
    projects: and_(
        projects.c.project == "default",
        projects.c.keep_raw_days.is_(None),
        projects.c.keep_results_days.is_(None),
    ),
}
# Few, since a row of windows may be several MB.
_ROWS_AT_ONCE = 50
_MANIFEST = "manifest.json"


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

    A database without jobs and tokens counts as empty, even if processes have run on it.

    Raises:
        InvalidRequest: the file is no backup, has other tables, or the database is not empty.
    """
    try:
        with zipfile.ZipFile(path) as archive, store.write() as conn:
            without_time_limits(conn)
            manifest = _read_manifest(archive)
            _check_fits(conn, manifest)
            _empty(conn)
            for table in _TABLES:
                _fill(conn, table, archive, manifest.rows.get(table.name))
            _restart_sequences(conn)
            return manifest
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidRequest(f"{path.name} is no whole backup: {error}") from error


def _write_zip(store: Store, file: Any) -> BackupManifest:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, store.snapshot() as conn:
        without_time_limits(conn)
        rows = {table.name: _write_table(conn, table, archive) for table in _TABLES}
        version = importlib.metadata.version("paceline")
        manifest = BackupManifest(_FORMAT, current_revision(conn), version, rows)
        archive.writestr(_MANIFEST, msgspec.json.encode(manifest))
    return manifest


def _write_table(conn: Connection, table: Table, archive: zipfile.ZipFile) -> int:
    query = select(table).order_by(*table.primary_key.columns)
    rows = conn.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
    num_rows = 0
    with archive.open(_archive_name(table), "w", force_zip64=True) as lines:
        for row in rows:
            values = {name: _to_json(value) for name, value in row._mapping.items()}
            lines.write(json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            num_rows += 1
    return num_rows


def _read_manifest(archive: zipfile.ZipFile) -> BackupManifest:
    manifest = msgspec.json.decode(archive.read(_MANIFEST), type=BackupManifest)
    if manifest.format != _FORMAT:
        raise InvalidRequest(f"the backup has format {manifest.format}; this version reads 1")
    return manifest


def _check_fits(conn: Connection, manifest: BackupManifest) -> None:
    revision = current_revision(conn)
    if manifest.revision != revision:
        raise InvalidRequest(
            f"the backup is of revision {manifest.revision} (Paceline {manifest.version}) and the "
            f"database of revision {revision}: restore with that version, then migrate"
        )


def _empty(conn: Connection) -> None:
    for table, rows in _ROWS_OF_A_NEW_DATABASE.items():
        conn.execute(delete(table).where(rows))
    for table in _TABLES:
        if conn.execute(select(*table.primary_key.columns).limit(1)).first() is not None:
            raise InvalidRequest(f"the database is not empty: its table {table.name} has rows")


def _fill(conn: Connection, table: Table, archive: zipfile.ZipFile, num_rows: int | None) -> None:
    filled = 0
    with archive.open(_archive_name(table)) as lines:
        while rows := [_row(table, line) for line in islice(lines, _ROWS_AT_ONCE)]:
            conn.execute(table.insert(), rows)
            filled += len(rows)
    if filled != num_rows:
        raise ValueError(f"{table.name} has {filled} rows instead of {num_rows}")


def _row(table: Table, line: bytes) -> dict[str, Any]:
    values = msgspec.json.decode(line, type=dict[str, Any])
    return {
        column.name: _from_json(values[column.name], of_bytes=is_bytes(column.type))
        for column in table.c
    }


def _restart_sequences(conn: Connection) -> None:
    # Restored ids were not drawn from PostgreSQL's sequence: it would hand them out again.
    if conn.dialect.name == "postgresql":
        for table, serial in _SERIALS:
            newest = select(func.max(table.c[serial])).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, serial)
            at = func.setval(sequence, func.coalesce(newest, 1), newest.is_not(None))
            conn.execute(select(at))


def _archive_name(table: Table) -> str:
    return f"tables/{table.name}.jsonl"


def _to_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _from_json(value: Any, *, of_bytes: bool) -> Any:
    return base64.b64decode(value, validate=True) if of_bytes and value is not None else value
