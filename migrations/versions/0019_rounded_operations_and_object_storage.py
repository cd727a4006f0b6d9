"""What rounding took from operations of windows that may be revised; those in object storage.

Rows of earlier releases stay as they are, and are read.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa
import zstandard
from alembic import op
from sqlalchemy.types import TypeEngine

from app.ingest.assembly.op_table import GroupTable, OpTable
from app.ingest.assembly.window_codec import unpack_window

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None

_FORMAT_3 = b"\xc1PW3"
_AT_ONCE = 20
_windows = sa.table("windows", *map(sa.column, ("job_id", "epoch", "first_step", "trace")))
_KEY = [_windows.c[name] for name in ("job_id", "epoch", "first_step")]


def upgrade() -> None:
    op.create_table(
        "window_remainders",
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("stored_s", sa.Double(), nullable=False),
        sa.Column("remainders", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", "first_step", name="pk_window_remainders"),
    )
    op.create_table(
        "window_objects",
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("claimed_s", sa.Double(), nullable=False),
        sa.Column("is_stored", sa.Boolean(), nullable=False),
        sa.Column("is_removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(
            "job_id", "epoch", "first_step", "revision", name="pk_window_objects"
        ),
    )
    op.create_index("ix_window_objects_updated_s", "window_objects", ["updated_s"])


def downgrade() -> None:
    conn = op.get_bind()
    for names in _of_format_3(conn):
        for row in conn.execute(sa.select(_windows).where(sa.tuple_(*_KEY).in_(names))).all():
            same = [column == row._mapping[column.name] for column in _KEY]
            conn.execute(sa.update(_windows).where(*same).values(trace=_format_2(row.trace)))
    op.drop_table("window_remainders")
    # What is in object storage stays there; the older release does not read it.
    op.drop_table("window_objects")


def _of_format_3(conn: sa.Connection) -> Iterator[list[tuple[Any, ...]]]:
    """The keys of windows that the older release cannot read, some at a time."""
    begins = sa.func.substr(_windows.c.trace, 1, len(_FORMAT_3)) == _FORMAT_3
    keys = [tuple(row) for row in conn.execute(sa.select(*_KEY).where(begins))]
    for first in range(0, len(keys), _AT_ONCE):
        yield keys[first : first + _AT_ONCE]


def _format_2(blob: bytes) -> bytes:
    """Every column by itself, as differences to its least value."""
    stored = unpack_window(blob)
    message: dict[str, Any] = {"format": 2, "columns": _columns(stored.ops)}
    if stored.groups is not None:
        message["collectives"] = _collectives(stored.groups)
    return msgspec.msgpack.encode(message)


def _columns(table: OpTable | GroupTable) -> dict[str, Any]:
    return {name: _column(values) for name, values in table.columns().items()}


def _column(values: Any) -> dict[str, Any]:
    wide = values.astype(np.int64)
    least, most = (int(wide.min()), int(wide.max())) if wide.size else (0, 0)
    dtype = np.min_scalar_type(most - least).newbyteorder("<")
    offsets = (wide.view(np.uint64) - np.int64(least).view(np.uint64)).astype(dtype)
    data = zstandard.compress(offsets.tobytes(), 1)
    return {"least": least, "dtype": dtype.str, "bytes": data}


def _collectives(table: GroupTable) -> dict[str, Any]:
    places = [table.places[rank] for rank in sorted(table.places)]
    hosts = sorted({each.host for each in places if each.host is not None})
    columns = {
        **{
            name: [-1 if (at := getattr(each, name)) is None else at for each in places]
            for name in ("rank", "dp_rank", "stage", "local_rank")
        },
        "host": [-1 if each.host is None else hosts.index(each.host) for each in places],
    }
    return {
        "groups": [
            {"name": each.name, "axis": each.axis, "ranks": list(each.ranks)}
            for each in table.groups
        ],
        "kinds": list(table.kinds),
        "hosts": hosts,
        "columns": _columns(table),
        "places": {name: _column(np.array(each, np.int64)) for name, each in columns.items()},
    }


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
