"""Tables of the first release."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _serial() -> TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=nullable, autoincrement=False)


def _bigint(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, autoincrement=False)


def _real(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _bytes(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=nullable)


def _job_id() -> sa.Column[str]:
    return sa.Column("job_id", _key(128), nullable=False)


def _key_of(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=f"fk_{table}_jobs")


def _of_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id", "epoch"], ["runs.job_id", "runs.epoch"], name=f"fk_{table}_runs"
    )


def upgrade() -> None:
    _create_jobs()
    _create_analysis()
    _create_open_batches()
    _create_shards()
    _create_alerts()


def _create_jobs() -> None:
    op.create_table("jobs", _job_id(), _bigint("epoch"), _key_of("jobs", "job_id"))
    op.create_table(
        "runs",
        _job_id(),
        _bigint("epoch"),
        _text("run_key"),
        _text("name"),
        *(_int(f"{axis}_size") for axis in ("dp", "pp", "tp", "vpp", "dsp")),
        _bigint("num_gpus"),
        _text("framework", nullable=True),
        _text("labels"),
        _real("registered_s"),
        _real("ended_s", nullable=True),
        _real("superseded_s", nullable=True),
        sa.Column("is_closed", sa.Boolean(), nullable=False),
        _real("last_data_s", nullable=True),
        _bigint("last_step", nullable=True),
        _key_of("runs", "job_id", "epoch"),
        _of_job("runs"),
        sa.UniqueConstraint("job_id", "run_key", name="uq_runs_job_id_run_key"),
    )
    op.create_index(
        "ix_runs_not_closed",
        "runs",
        ["job_id", "epoch"],
        sqlite_where=sa.text("is_closed = 0"),
        postgresql_where=sa.text("NOT is_closed"),
    )


def _create_analysis() -> None:
    op.create_table(
        "windows",
        _job_id(),
        _bigint("epoch"),
        _bigint("first_step"),
        _bigint("last_step"),
        _bigint("revision"),
        _text("state"),
        _int("num_steps"),
        _bigint("num_ops"),
        _real("slowdown", nullable=True),
        _text("verdict", nullable=True),
        _real("updated_s"),
        _bytes("result"),
        _bytes("per_step", nullable=True),
        _bytes("trace", nullable=True),
        _key_of("windows", "job_id", "epoch", "first_step"),
        _of_run("windows"),
    )
    op.create_index(
        "ix_windows_with_figures",
        "windows",
        ["job_id", "epoch", "first_step"],
        sqlite_where=sa.text("slowdown IS NOT NULL"),
        postgresql_where=sa.text("slowdown IS NOT NULL"),
    )
    op.create_table(
        "steps",
        _job_id(),
        _bigint("epoch"),
        _bigint("step"),
        *(_real(name, nullable=True) for name in ("recorded_s", "simulated_s", "ideal_s")),
        _real("slowdown", nullable=True),
        _text("window_id"),
        _text("skipped_reason", nullable=True),
        _key_of("steps", "job_id", "epoch", "step"),
        _of_run("steps"),
    )
    op.create_table(
        "hosts",
        _job_id(),
        _bigint("epoch"),
        _bytes("names"),
        _key_of("hosts", "job_id", "epoch"),
        _of_run("hosts"),
    )


def _create_open_batches() -> None:
    op.create_table(
        "batches",
        _job_id(),
        _bigint("epoch"),
        _bigint("rank"),
        _bigint("batch_seq"),
        _bytes("body"),
        _key_of("batches", "job_id", "epoch", "rank", "batch_seq"),
        _of_run("batches"),
    )
    op.create_table(
        "cursors",
        _job_id(),
        _bigint("epoch"),
        _bytes("blob"),
        _key_of("cursors", "job_id", "epoch"),
        _of_run("cursors"),
    )


def _create_shards() -> None:
    op.create_table(
        "shards",
        _int("shard"),
        _text("owner", nullable=True),
        _bigint("fence"),
        _real("lease_until_s"),
        _key_of("shards", "shard"),
    )
    op.create_table(
        "consumers",
        sa.Column("owner", _key(256), nullable=False),
        _real("lease_until_s"),
        _key_of("consumers", "owner"),
    )


def _create_alerts() -> None:
    op.create_table(
        "alert_states",
        _job_id(),
        sa.Column("rule", _key(64), nullable=False),
        _text("state"),
        _key_of("alert_states", "job_id", "rule"),
        _of_job("alert_states"),
    )
    op.create_table(
        "alert_events",
        sa.Column("event_id", _serial(), nullable=False),
        _job_id(),
        sa.Column("rule", _key(64), nullable=False),
        _text("kind"),
        _real("at_s"),
        _text("window_id", nullable=True),
        _real("slowdown", nullable=True),
        _real("threshold"),
        _bigint("since_step", nullable=True),
        _text("sentence"),
        _key_of("alert_events", "event_id"),
        _of_job("alert_events"),
    )
    op.create_index("ix_alert_events_job_id_event_id", "alert_events", ["job_id", "event_id"])
    _create_outbox()


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("delivery_id", _key(64), nullable=False),
        sa.Column("event_id", _serial(), nullable=False, autoincrement=False),
        _job_id(),
        sa.Column("rule", _key(64), nullable=False),
        _text("endpoint"),
        _text("payload"),
        _text("state"),
        _int("attempt"),
        _real("next_at_s"),
        _real("lease_until_s"),
        _text("detail", nullable=True),
        _real("created_s"),
        _real("done_s", nullable=True),
        _key_of("outbox", "delivery_id"),
        sa.ForeignKeyConstraint(
            ["event_id"], ["alert_events.event_id"], name="fk_outbox_alert_events"
        ),
        sa.UniqueConstraint("endpoint", "event_id", name="uq_outbox_endpoint_event_id"),
    )
    op.create_index("ix_outbox_state_next_at_s", "outbox", ["state", "next_at_s"])
    op.create_index(
        "ix_outbox_job_id_rule_endpoint_event_id",
        "outbox",
        ["job_id", "rule", "endpoint", "event_id"],
    )


def downgrade() -> None:
    for table in (
        "outbox",
        "alert_events",
        "alert_states",
        "consumers",
        "shards",
        "hosts",
        "cursors",
        "batches",
        "steps",
        "windows",
        "runs",
        "jobs",
    ):
        op.drop_table(table)
