"""All tables in one file, from which either kind of database can be filled.

A zip file: `tables/NAME.jsonl` with one JSON object a row (bytes in base64), and
`manifest.json` with the format, the migration and the version that it was written by, and the
number of rows of each table.
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
from sqlalchemy import Connection, Table, func, select

from app.errors import InvalidRequest
from app.store.columns import is_bytes
from app.store.engine import Store
from app.store.migrate import current_revision
from app.store.tables import alert_events, metadata

_FORMAT = 1
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

    Raises:
        InvalidRequest: the file is no backup or one of other tables, or the database has rows.
    """
    try:
        with zipfile.ZipFile(path) as archive, store.write() as conn:
            manifest = _read_manifest(archive)
            _check_fits(conn, manifest)
            for table in metadata.sorted_tables:
                _fill(conn, table, archive, manifest.rows.get(table.name))
            _count_on(conn)
            return manifest
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidRequest(f"{path.name} is no whole backup: {error}") from error


def _write_zip(store: Store, file: Any) -> Manifest:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, store.snapshot() as conn:
        rows = {table.name: _write_table(conn, table, archive) for table in metadata.sorted_tables}
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
    for table in metadata.sorted_tables:
        if conn.execute(select(func.count()).select_from(table)).scalar_one():
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
        newest = select(func.max(alert_events.c.event_id)).scalar_subquery()
        sequence = func.pg_get_serial_sequence("alert_events", "event_id")
        conn.execute(select(func.setval(sequence, func.coalesce(newest, 1), newest.is_not(None))))


def _member(table: Table) -> str:
    return f"tables/{table.name}.jsonl"


def _to_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _from_json(value: Any, *, of_bytes: bool) -> Any:
    return base64.b64decode(value, validate=True) if of_bytes and value is not None else value
