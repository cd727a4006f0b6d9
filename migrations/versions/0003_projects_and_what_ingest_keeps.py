"""Projects and tokens, the spool of open windows, what became of each operation, dead letters."""

import zlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa
import zstandard
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

DEFAULT = "default/"  # whatever there was before projects belongs to this one
_OF_JOBS = ("runs", "windows", "steps", "hosts", "cursors", "alert_states", "alert_events")
_WITH_JOB_ID = ("jobs", "outbox", *_OF_JOBS)
_NO_STEP = -1
_AT_ONCE = 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"

_batches = sa.table(
    "batches", *map(sa.column, ("job_id", "epoch", "rank", "batch_seq")), sa.column("body")
)
_spool = sa.table(
    "spool", *map(sa.column, ("job_id", "epoch", "turn", "last_step")), sa.column("blob")
)
_cursors = sa.table("cursors", *map(sa.column, ("job_id", "epoch", "blob")))
_windows = sa.table(
    "windows",
    *map(sa.column, ("job_id", "epoch", "first_step", "result", "per_step", "trace")),
)


def upgrade() -> None:
    _create_projects()
    _create_spool()
    _create_counts()
    _create_dead_letters()
    op.add_column("shards", sa.Column("committed", sa.Text()))
    op.add_column("runs", sa.Column("silent_ranks", sa.Text()))
    op.add_column("runs", sa.Column("silent_since_s", sa.Double()))
    op.add_column("runs", sa.Column("stalled_since_s", sa.Double()))
    op.create_index("ix_windows_updated", "windows", ["updated_s"])
    with_trace = sa.text("trace IS NOT NULL")
    op.create_index(
        "ix_windows_with_trace",
        "windows",
        ["updated_s"],
        sqlite_where=with_trace,
        postgresql_where=with_trace,
    )
    _batches_to_spool(op.get_bind())
    op.drop_table("batches")
    _rename_jobs("'default/' || job_id", "")


def downgrade() -> None:
    _rename_jobs("substr(job_id, 9)", " WHERE job_id LIKE 'default/%'")
    _create_batches()
    conn = op.get_bind()
    _spool_to_batches(conn)
    _recompress_windows(conn)
    op.drop_index("ix_windows_with_trace", "windows")
    op.drop_index("ix_windows_updated", "windows")
    op.drop_column("runs", "stalled_since_s")
    op.drop_column("runs", "silent_since_s")
    op.drop_column("runs", "silent_ranks")
    op.drop_column("shards", "committed")
    for table in ("totals", "dead_letters", "ingest_counts", "spool", "tokens", "projects"):
        op.drop_table(table)


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _bigint(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, autoincrement=False)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _real(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _of_run(table: str) -> tuple[Any, ...]:
    return (
        sa.Column("job_id", _key(128), nullable=False),
        _bigint("epoch"),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"], ["runs.job_id", "runs.epoch"], name=f"fk_{table}_runs"
        ),
    )


def _create_projects() -> None:
    op.create_table(
        "projects",
        sa.Column("project", _key(32), nullable=False),
        _real("created_s"),
        _real("keep_raw_days", nullable=True),
        _real("keep_results_days", nullable=True),
        sa.PrimaryKeyConstraint("project", name="pk_projects"),
    )
    op.execute("INSERT INTO projects (project, created_s) VALUES ('default', 0.0)")
    op.create_table(
        "tokens",
        sa.Column("token_id", _key(32), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        _text("name"),
        _text("digest"),
        _text("scopes"),
        _text("job", nullable=True),
        _real("created_s"),
        _real("expires_s", nullable=True),
        _real("revoked_s", nullable=True),
        _real("last_used_s", nullable=True),
        sa.PrimaryKeyConstraint("token_id", name="pk_tokens"),
        sa.ForeignKeyConstraint(["project"], ["projects.project"], name="fk_tokens_projects"),
    )
    op.create_index("ix_tokens_project_token_id", "tokens", ["project", "token_id"])


def _create_spool() -> None:
    op.create_table(
        "spool",
        *_of_run("spool"),
        _bigint("turn"),
        _bigint("last_step"),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", "turn", name="pk_spool"),
    )


def _create_counts() -> None:
    names = ("accepted", "duplicate", "conflict", "late", "dead", "lost_batches")
    op.create_table(
        "ingest_counts",
        *_of_run("ingest_counts"),
        *map(_bigint, names),
        _text("last_conflict", nullable=True),
        sa.PrimaryKeyConstraint("job_id", "epoch", name="pk_ingest_counts"),
    )
    op.create_table(
        "totals",
        sa.Column("name", _key(64), nullable=False),
        _bigint("value"),
        sa.PrimaryKeyConstraint("name", name="pk_totals"),
    )


def _create_dead_letters() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "dead_letters",
        sa.Column("letter_id", serial, nullable=False),
        sa.Column("job_id", _key(128), nullable=False),
        _bigint("epoch", nullable=True),
        _text("entry_id"),
        _bigint("num_ops"),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        _text("reason"),
        _real("received_s"),
        _real("died_s"),
        _text("state"),
        _real("settled_s", nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("letter_id", name="pk_dead_letters"),
        sa.UniqueConstraint("job_id", "entry_id", name="uq_dead_letters_job_id_entry_id"),
    )
    op.create_index("ix_dead_letters_state_letter_id", "dead_letters", ["state", "letter_id"])


def _create_batches() -> None:
    op.create_table(
        "batches",
        *_of_run("batches"),
        _bigint("rank"),
        _bigint("batch_seq"),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", "rank", "batch_seq", name="pk_batches"),
    )


def _rename_jobs(expression: str, where: str) -> None:
    """Give every job another id, in all tables at once."""
    on_postgresql = op.get_bind().dialect.name == "postgresql"
    keys = [
        *((table, f"fk_{table}_jobs") for table in ("runs", "alert_states", "alert_events")),
        *((table, f"fk_{table}_runs") for table in ("windows", "steps", "hosts", "cursors")),
        *((table, f"fk_{table}_runs") for table in ("spool", "ingest_counts")),
    ]
    if on_postgresql:
        for table, key in keys:
            op.execute(f"ALTER TABLE {table} ALTER CONSTRAINT {key} DEFERRABLE")
        op.execute("SET CONSTRAINTS ALL DEFERRED")
    else:
        op.execute("PRAGMA defer_foreign_keys = ON")
    for table in (*_WITH_JOB_ID, "spool", "ingest_counts"):
        op.execute(f"UPDATE {table} SET job_id = {expression}{where}")  # noqa: S608
    if on_postgresql:
        op.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table, key in keys:
            op.execute(f"ALTER TABLE {table} ALTER CONSTRAINT {key} NOT DEFERRABLE")


def _batches_to_spool(conn: sa.Connection) -> None:
    query = sa.select(_batches).order_by(*(_batches.c[name] for name in ("job_id", "epoch")))
    rows = conn.execute(query.order_by(_batches.c.rank, _batches.c.batch_seq)).all()
    for (job_id, epoch), of_run in groupby(rows, lambda row: (row.job_id, row.epoch)):
        of_this = (_cursors.c.job_id == job_id, _cursors.c.epoch == epoch)
        blob = conn.execute(sa.select(_cursors.c.blob).where(*of_this)).scalar_one_or_none()
        state = {} if blob is None else msgspec.msgpack.decode(zlib.decompress(blob))
        late = {tuple(key): steps for key, steps in state.get("late", [])}
        kept = [(row.body, late.get((row.rank, row.batch_seq), [])) for row in of_run]
        packed = zstandard.compress(msgspec.msgpack.encode(kept))
        last_step = max(_last_step(body) for body, _ in kept)
        values = {"job_id": job_id, "epoch": epoch, "turn": 1, "last_step": last_step}
        conn.execute(sa.insert(_spool).values(**values, blob=packed))
        # Each settled step was a revision of the open window: the next one has to be newer.
        state |= {"turn": 1, "revision": len(state.get("settled", []))}
        blob = zstandard.compress(msgspec.msgpack.encode(state))
        conn.execute(sa.update(_cursors).where(*of_this).values(blob=blob))


def _spool_to_batches(conn: sa.Connection) -> None:
    late: dict[tuple[str, int], list[Any]] = {}
    for row in conn.execute(sa.select(_spool)).all():
        kept = msgspec.msgpack.decode(_inflated(row.blob))
        for body, dropped in kept:
            plain = _inflated(body)
            header = msgspec.msgpack.decode(plain)
            key = {"rank": header["rank"], "batch_seq": header["batch_seq"]}
            values = {"job_id": row.job_id, "epoch": row.epoch, **key, "body": plain}
            if not conn.execute(_same_batch(values)).first():
                conn.execute(sa.insert(_batches).values(**values))
            if dropped:
                late.setdefault((row.job_id, row.epoch), []).append([[*key.values()], dropped])
    for row in conn.execute(sa.select(_cursors)).all():
        state = msgspec.msgpack.decode(_inflated(row.blob))
        state["late"] = late.get((row.job_id, row.epoch), [])
        of_this = (_cursors.c.job_id == row.job_id, _cursors.c.epoch == row.epoch)
        packed = zlib.compress(msgspec.msgpack.encode(state), 1)
        conn.execute(sa.update(_cursors).where(*of_this).values(blob=packed))


def _same_batch(values: dict[str, Any]) -> Any:
    key = ("job_id", "epoch", "rank", "batch_seq")
    return sa.select(_batches.c.rank).where(*(_batches.c[name] == values[name] for name in key))


def _recompress_windows(conn: sa.Connection) -> None:
    key = [_windows.c[name] for name in ("job_id", "epoch", "first_step")]
    for names in _in_parts(conn.execute(sa.select(*key)).all()):
        of_these = sa.tuple_(*key).in_([tuple(name) for name in names])
        for row in conn.execute(sa.select(_windows).where(of_these)).all():
            values = {
                "result": zlib.compress(_inflated(row.result), 1),
                "per_step": row.per_step and zlib.compress(_inflated(row.per_step), 1),
                "trace": row.trace and _trace_of_format_1(row.trace),
            }
            same = [column == row._mapping[column.name] for column in key]
            conn.execute(sa.update(_windows).where(*same).values(**values))


def _in_parts(rows: Any) -> Iterator[Any]:
    for first in range(0, len(rows), _AT_ONCE):
        yield rows[first : first + _AT_ONCE]


def _trace_of_format_1(blob: bytes) -> bytes:
    message = msgspec.msgpack.decode(_inflated(blob))
    known = ("step", "rank", "dp_rank", "stage", "optype", "seq_id", "mc", "mb_id")
    names = (*known, "start_ns", "duration_ns")
    columns = {name: dict(message["columns"][name]) for name in names}
    for column in columns.values():
        column["bytes"] = _inflated(column["bytes"])
    plain = msgspec.msgpack.encode({"format": 1, "columns": columns})
    return zlib.compress(zlib.compress(plain, 1), 1)


def _inflated(blob: bytes) -> bytes:
    """The bytes without the compressions around them."""
    while True:
        if blob[:4] == _ZSTD:
            blob = zstandard.ZstdDecompressor().decompressobj().decompress(blob)
        elif blob[:2] == _GZIP:
            blob = zlib.decompress(blob, wbits=31)
        elif blob[:1] == b"\x78":
            blob = zlib.decompress(blob)
        else:
            return blob


def _last_step(body: bytes) -> int:
    batch = msgspec.msgpack.decode(body)
    steps = np.frombuffer(batch["columns"]["step"], dtype="<i8").tolist()
    return int(max([_NO_STEP, *steps, *(step for step, _ in batch["steps_done"])]))
