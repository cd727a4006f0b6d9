"""What is stored in one file, from which either kind of database can be filled.

A zip file: `tables/NAME.jsonl` with one JSON object a row (bytes in base64), and
`manifest.json` with the format, the migration and the version that it was written by, and the
number of rows of each table. Left out is who works on what: that is of one moment and one place.
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
from app.store.alert_tables import alert_events, audit, delivery_attempts, outbox
from app.store.columns import is_bytes
from app.store.engine import Store, without_time_limits
from app.store.revision import current_revision
from app.store.tables import (
    consumers,
    dead_letters,
    metadata,
    projects,
    shards,
    totals,
)

_FORMAT = 1
_KEPT = [table for table in metadata.sorted_tables if table not in (shards, consumers)]
_SERIALS = (
    (alert_events, "event_id"),
    (dead_letters, "letter_id"),
    (outbox, "seq"),
    (delivery_attempts, "attempt_id"),
    (audit, "audit_id"),
)
# Rows that are there before anybody has done anything with the database: the backup's take their
# place. The project is the one that the migrations make, as long as nobody has changed it.
_OF_A_NEW_DATABASE: dict[Table, ColumnElement[bool]] = {
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


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What a backup says about itself."""

    format: int
    revision: str | None
    version: str
    rows: dict[str, int]


def backup(store: Store, path: Path) -> Manifest:
    """Write all tables, as they are at one moment, to a file that is there whole or not at all."""
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


def restore(store: Store, path: Path) -> Manifest:
    """Fill an empty, migrated database from a backup; all of it or nothing.

    One that processes have run on is still empty, as long as no job or token was ever made in it.

    Raises:
        InvalidRequest: the file is no backup or one of other tables, or the database has rows.
    """
    try:
        with zipfile.ZipFile(path) as archive, store.write() as conn:
            without_time_limits(conn)
            manifest = _read_manifest(archive)
            _check_fits(conn, manifest)
            _empty(conn)
            for table in _KEPT:
                _fill(conn, table, archive, manifest.rows.get(table.name))
            _count_on(conn)
            return manifest
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidRequest(f"{path.name} is no whole backup: {error}") from error


def _write_zip(store: Store, file: Any) -> Manifest:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, store.snapshot() as conn:
        without_time_limits(conn)
        rows = {table.name: _write_table(conn, table, archive) for table in _KEPT}
        version = importlib.metadata.version("paceline")
        manifest = Manifest(_FORMAT, current_revision(conn), version, rows)
        archive.writestr(_MANIFEST, msgspec.json.encode(manifest))
    return manifest


def _write_table(conn: Connection, table: Table, archive: zipfile.ZipFile) -> int:
    query = select(table).order_by(*table.primary_key.columns)
    rows = conn.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
    num_rows = 0
    with archive.open(_member(table), "w", force_zip64=True) as lines:
        for row in rows:
            values = {name: _to_json(value) for name, value in row._mapping.items()}
            lines.write(json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            num_rows += 1
    return num_rows


def _read_manifest(archive: zipfile.ZipFile) -> Manifest:
    manifest = msgspec.json.decode(archive.read(_MANIFEST), type=Manifest)
    if manifest.format != _FORMAT:
        raise InvalidRequest(f"the backup has format {manifest.format}; this version reads 1")
    return manifest


def _check_fits(conn: Connection, manifest: Manifest) -> None:
    revision = current_revision(conn)
    if manifest.revision != revision:
        raise InvalidRequest(
            f"the backup is of revision {manifest.revision} (Paceline {manifest.version}) and the "
            f"database of revision {revision}: restore with that version, then migrate"
        )


def _empty(conn: Connection) -> None:
    for table, rows in _OF_A_NEW_DATABASE.items():
        conn.execute(delete(table).where(rows))
    for table in _KEPT:
        if conn.execute(select(*table.primary_key.columns).limit(1)).first() is not None:
            raise InvalidRequest(f"the database is not empty: its table {table.name} has rows")


def _fill(conn: Connection, table: Table, archive: zipfile.ZipFile, num_rows: int | None) -> None:
    filled = 0
    with archive.open(_member(table)) as lines:
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


def _count_on(conn: Connection) -> None:
    # Restored ids were not drawn from PostgreSQL's sequence: it would hand them out again.
    if conn.dialect.name == "postgresql":
        for table, serial in _SERIALS:
            newest = select(func.max(table.c[serial])).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, serial)
            at = func.setval(sequence, func.coalesce(newest, 1), newest.is_not(None))
            conn.execute(select(at))


def _member(table: Table) -> str:
    return f"tables/{table.name}.jsonl"


def _to_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _from_json(value: Any, *, of_bytes: bool) -> Any:
    return base64.b64decode(value, validate=True) if of_bytes and value is not None else value
