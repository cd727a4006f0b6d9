"""The tables of release 0.1.0; databases and backups of before go through that release.

Frozen: app/store/tables.py goes on, by the migrations after this one.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0024"
down_revision = None
branch_labels = None
depends_on = None

tables = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_RUN = ("job_id", "epoch")
_WINDOW = (*_RUN, "first_step")
Columns = list[sa.Column[Any]]


def upgrade() -> None:
    tables.create_all(op.get_bind(), checkfirst=False)
    op.execute("INSERT INTO projects (project, created_s) VALUES ('default', 0.0)")


def downgrade() -> None:
    tables.drop_all(op.get_bind(), checkfirst=False)


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    sa.Table(name, tables, *items)


def _columns(kind: TypeEngine[Any], names: tuple[str, ...]) -> Columns:
    """Columns of this type; those whose name ends with a question mark may be null."""
    return [sa.Column(name.rstrip("?"), kind, nullable=name.endswith("?")) for name in names]


def _text(*names: str) -> Columns:
    return _columns(sa.Text(), names)


def _int(*names: str) -> Columns:
    return _columns(sa.Integer(), names)


def _bigint(*names: str) -> Columns:
    return _columns(sa.BigInteger(), names)


def _real(*names: str) -> Columns:
    return _columns(sa.Double(), names)


def _bool(*names: str) -> Columns:
    return _columns(sa.Boolean(), names)


def _bytes(*names: str) -> Columns:
    return _columns(sa.LargeBinary(), names)


def _limited(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _short(name: str, length: int, *items: sa.ForeignKey) -> sa.Column[str]:
    is_nullable = name.endswith("?")
    return sa.Column(name.rstrip("?"), _limited(length), *items, nullable=is_nullable)


def _key(name: str, length: int, *items: sa.ForeignKey) -> sa.Column[str]:
    return sa.Column(name, _limited(length), *items, primary_key=True)


def _number_keys(*names: str) -> Columns:
    kind = sa.BigInteger()
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def _serial_key(name: str) -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(name, kind, primary_key=True)


def _of_job(name: str = "job_id") -> sa.Column[str]:
    return _short(name, 128, sa.ForeignKey("jobs.job_id"))


def _job_key() -> sa.Column[str]:
    return _key("job_id", 128, sa.ForeignKey("jobs.job_id"))


def _run_keys(foreign_key: str | None = None) -> list[sa.schema.SchemaItem]:
    of_run = [f"runs.{name}" for name in _RUN]
    return [
        _key("job_id", 128),
        *_number_keys("epoch"),
        sa.ForeignKeyConstraint(_RUN, of_run, name=foreign_key),
    ]


def _window_keys() -> list[sa.schema.SchemaItem]:
    return [_key("job_id", 128), *_number_keys("epoch", "first_step")]


def _of_window() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(_WINDOW, [f"windows.{name}" for name in _WINDOW])


def _index(*columns: str, unique: bool = False) -> sa.Index:
    return sa.Index(None, *columns, unique=unique)


def _partial_index(
    name: str,
    columns: tuple[str, ...],
    where: str,
    on_postgresql: str = "",
    *,
    unique: bool = False,
) -> sa.Index:
    return sa.Index(
        name,
        *columns,
        unique=unique,
        sqlite_where=sa.text(where),
        postgresql_where=sa.text(on_postgresql or where),
    )


_table(
    "projects",
    _key("project", 32),
    *_real("created_s", "keep_raw_days?", "keep_results_days?", "keep_gb?"),
)
_table(
    "tokens",
    _key("token_id", 32),
    _short("project", 32, sa.ForeignKey("projects.project")),
    *_text("name", "digest", "scopes", "job?"),
    *_real("created_s", "expires_s?", "revoked_s?", "last_used_s?"),
    _index("project", "token_id"),
)
_table(
    "jobs",
    _key("job_id", 128),
    *_bigint("epoch"),
    *_real("archived_s?", "deleted_s?", "removal_began_s?"),
    sa.Column("edited_labels", sa.Text(), nullable=False, server_default="{}"),
    _partial_index("ix_jobs_deleted", ("job_id",), "deleted_s IS NOT NULL"),
)
_table(
    "runs",
    _job_key(),
    *_number_keys("epoch"),
    *_text("run_key", "name"),
    *_int("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size"),
    sa.Column("ep_size", sa.Integer(), nullable=False, server_default="1"),
    *_bigint("num_gpus"),
    *_text("framework?", "labels"),
    sa.Column("op_types", sa.Text(), nullable=False, server_default="[]"),
    *_real("registered_s", "ended_s?", "superseded_s?"),
    *_bool("is_closed"),
    *_real("last_data_s?"),
    *_bigint("last_step?"),
    *_text("silent_ranks?", "silent_workers?"),
    *_real("silent_since_s?", "stalled_since_s?", "exit_reported_s?"),
    *_int("num_exits?"),
    *_text("ended_as?", "end_cause?"),
    sa.UniqueConstraint("job_id", "run_key"),
    _partial_index("ix_runs_not_closed", _RUN, "is_closed = 0", "NOT is_closed"),
)
_table(
    "windows",
    *_run_keys(),
    *_number_keys("first_step"),
    *_bigint("last_step", "revision"),
    *_text("state"),
    *_int("num_steps"),
    *_bigint("num_ops"),
    *_real("slowdown?"),
    *_text("verdict?"),
    *_real("updated_s"),
    # Large columns last: reading the others skips their pages.
    *_bytes("result", "per_step?", "trace?"),
    sa.Index("ix_windows_updated", "updated_s"),
    sa.Index("ix_windows_age", *_WINDOW, "updated_s"),
    _partial_index("ix_windows_with_per_step", ("updated_s",), "per_step IS NOT NULL"),
    _partial_index("ix_windows_with_trace", ("updated_s",), "trace IS NOT NULL"),
    _partial_index("ix_windows_with_figures", _WINDOW, "slowdown IS NOT NULL"),
)
_table("window_remainders", *_window_keys(), *_real("stored_s"), *_bytes("remainders"))
_table(
    "window_objects",
    *_window_keys(),
    *_number_keys("revision"),
    *_bigint("window_first_step", "window_revision"),
    *_real("updated_s"),
    *_bigint("size_bytes"),
    *_text("sha256"),
    *_real("claimed_s"),
    *_bool("is_stored", "is_removed"),
    _index("updated_s"),
)
_table("window_briefs", *_window_keys(), *_text("brief"), _of_window())
_table(
    "window_losses",
    *_window_keys(),
    _key("kind", 16),
    _key("name", 256),
    *_real("updated_s", "gpu_s", "gpu_s_recorded?"),
    *_bigint("num_gpus"),
    *_real("slowdown?"),
    _of_window(),
    sa.Index("ix_window_losses_kind", "kind", "updated_s"),
    sa.Index("ix_window_losses_name", "kind", "name", "updated_s"),
)
_table("run_hosts", *_run_keys(), _key("host", 256), _index("host"))
_table(
    "saved_questions",
    _key("question_id", 32),
    _of_job(),
    *_text("name", "window_id", "question"),
    *_real("saved_s"),
    _index("job_id", "saved_s"),
)
_table(
    "fixes",
    _key("fix_id", 32),
    _of_job(),
    _short("fix", 64),
    *_text("title", "tracked_by?"),
    *_bigint("epoch", "first_step"),
    *_real("before_s", "step_s", "least_step_s", "most_step_s", "gpu_hours_per_day"),
    *_real("predicted_s", "renewed_s", "updated_s"),
    *_text("sign", "state", "windows"),
    *_bigint("num_there", "applied_epoch?", "applied_step?"),
    *_real("achieved?"),
    *_text("note?", "notice?"),
    _index("job_id", "predicted_s", "fix_id"),
    _partial_index("ix_fixes_live", ("job_id", "fix"), "state IN ('open', 'applied')", unique=True),
)
_table(
    "steps",
    *_run_keys(),
    *_number_keys("step"),
    *_real("recorded_s?", "simulated_s?", "ideal_s?", "slowdown?"),
    *_text("window_id", "skipped_reason?"),
    *_real("started_s?"),
    *_bigint("last_step?", "num_steps?"),
)
_table("spool", *_run_keys(), *_number_keys("turn"), *_bigint("last_step"), *_bytes("blob"))
_table(
    "ingest_counts",
    *_run_keys(),
    *_bigint("accepted", "duplicate", "conflict", "late", "dead", "lost_batches"),
    *_text("last_conflict?", "in_groups?"),
)
_table("hosts", *_run_keys(), *_bytes("names", "placements?"))
_table("drops", *_run_keys(), *_bigint("total", "num_workers"), *_text("worst"), *_bytes("by_rank"))
_table(
    "rank_exits",
    *_run_keys("fk_rank_exits_job_id_runs"),
    *_number_keys("rank"),
    *_bigint("dp_rank", "stage"),
    *_text("host?", "outcome"),
    *_real("at_s"),
    *_text("error_type?", "message?"),
    *_int("signal?", "exit_code?"),
)
_table("recordings", _job_key(), *_text("plans"))
_table("histories", *_run_keys(), *_bigint("through_step"), *_bytes("blob"))
_table("cursors", *_run_keys(), *_bytes("blob"))
_table(
    "shards",
    sa.Column("shard", sa.Integer(), primary_key=True, autoincrement=False),
    *_text("owner?"),
    *_bigint("fence"),
    *_real("lease_until_s"),
    *_text("committed?"),
)
_table(
    "consumers",
    _key("owner", 256),
    *_real("lease_until_s"),
    *_text("knows?"),
    *_real("last_turn_s?"),
)
_table(
    "service_watches",
    _key("name", 32),
    *_real("ok_s?", "since_s", "checked_s?", "lease_until_s", "told_s?", "took_s?"),
    *_bigint("rounds"),
    *_text("detail?"),
)
_table(
    "dead_letters",
    _serial_key("letter_id"),
    _short("job_id", 128),
    *_bigint("epoch?"),
    *_text("entry_id"),
    *_bigint("num_ops"),
    *_int("deliveries"),
    *_text("reason"),
    *_real("received_s", "died_s"),
    *_text("state"),
    *_real("settled_s?"),
    *_bytes("body"),
    sa.UniqueConstraint("job_id", "entry_id"),
    _index("state", "letter_id"),
)
_table("totals", _key("name", 64), *_bigint("value"))
_table("service_keys", _key("name", 64), *_bytes("key"))
_table("service_addresses", _key("name", 64), *_text("url"))
_table(
    "sessions",
    _key("session_id", 32),
    _short("digest", 64),
    _short("token_id", 32),
    _short("project", 32),
    *_text("user_agent", "address"),
    *_real("created_s", "expires_s", "last_used_s?", "ended_s?"),
    _index("project", "created_s"),
    _index("token_id", "created_s"),
    _index("expires_s"),
)
_table(
    "saved_views",
    _key("view_id", 32),
    _short("project", 32),
    _short("name", 100),
    *_text("query", "author"),
    *_real("saved_s"),
    sa.UniqueConstraint("project", "name"),
)
_table(
    "audit",
    _serial_key("audit_id"),
    _short("project", 32),
    *_real("at_s"),
    *_text("actor", "action", "object_kind", "object_id", "detail"),
    _index("project", "audit_id"),
    _index("project", "at_s"),
)
_table(
    "score_reports",
    _key("report_id", 32),
    _of_job(),
    *_bigint("epoch"),
    _short("source", 64),
    *_real("received_s"),
    *_bigint("num_scores", "num_reports"),
    *_text("lacks"),
    *_bytes("scores"),
    _index("job_id", "received_s"),
    _index("job_id", "source", "received_s"),
)
_table(
    "annotations",
    _key("annotation_id", 32),
    _short("project", 32),
    _of_job("job_id?"),
    *_text("matchers"),
    _short("kind", 32),
    *_text("text", "host?"),
    *_real("at_s", "ends_s?"),
    *_bigint("epoch?", "step?"),
    *_text("source", "author"),
    *_real("created_s"),
    _index("project", "at_s", "annotation_id"),
    _index("job_id", "at_s"),
)
_table(
    "share_links",
    _key("share_id", 32),
    _short("project", 32),
    _of_job(),
    _short("digest", 64),
    *_text("author"),
    *_real("created_s", "expires_s", "revoked_s?"),
    *_text("window_id"),
    *_bigint("first_step", "last_step", "size_bytes"),
    *_bytes("page?"),
    _index("digest", unique=True),
    _index("project", "created_s", "share_id"),
)
_table("disk_samples", sa.Column("at_s", sa.Double(), primary_key=True), *_bigint("used_bytes"))
_table(
    "alert_rules",
    _key("project", 32),
    *_bigint("version"),
    *_text("rules?", "text?"),
    *_real("updated_s"),
)
_table(
    "alerts",
    _key("fingerprint", 16),
    _of_job(),
    _short("rule", 64),
    _short("subject", 256),
    *_text("phase", "severity"),
    *_real("began_at_s", "firing_at_s?"),
    *_bigint("epoch?"),
    *_text("window_id?"),
    *_bigint("num_windows"),
    *_real("held_s", "below_s", "ceased_s?", "unseen_since_s?"),
    *_bool("is_no_data"),
    *_real("threshold?"),
    *_text("labels", "runbook_url?", "detail"),
    *_real("acked_at_s?"),
    *_text("acked_by?", "assigned_to?"),
    *_real("assigned_at_s?"),
    *_text("assigned_by?", "note?"),
    *_real("noted_at_s?"),
    *_text("noted_by?"),
    _index("job_id", "rule"),
)
_table(
    "alert_events",
    _serial_key("event_id"),
    _short("fingerprint", 16),
    _of_job(),
    _short("rule", 64),
    _short("subject", 256),
    *_text("kind"),
    *_real("at_s"),
    *_text("severity", "sentence"),
    *_real("threshold?"),
    *_text("detail", "actor?", "reason?"),
    _index("job_id", "event_id"),
    _index("fingerprint", "event_id"),
    _index("at_s"),
)
_table(
    "alert_groups",
    _job_key(),
    _key("rule", 64),
    *_real("next_at_s?", "last_at_s?", "refreshed_at_s?", "lease_until_s"),
    *_bigint("num_claims", "num_wakes"),
    _index("next_at_s"),
)
_table(
    "alert_told",
    _key("fingerprint", 16),
    _of_job(),
    _short("rule", 64),
    *_text("kind"),
    *_real("at_s"),
    *_bigint("event_id"),
    *_real("starts_at_s"),
    *_text("sentence", "detail", "labels", "known_as"),
    *_real("first_at_s", "threshold?"),
    *_text("runbook_url?"),
    _index("job_id", "rule"),
    _index("kind", "at_s"),
)
_table(
    "muting",
    _key("silence_id", 32),
    _short("project", 32),
    *_text("kind", "matchers"),
    *_real("starts_s", "ends_s"),
    *_text("author", "comment"),
    *_real("created_s"),
    _short("until_end_of?", 128),
    _index("project", "ends_s", "silence_id"),
)
_table(
    "endpoints",
    _key("endpoint_id", 32),
    _short("project?", 32),
    *_text("name", "format", "url", "matchers", "min_severity"),
    *_bool("wants_resolved", "is_enabled"),
    *_text("secrets", "sealed?"),
    *_real("old_secret_until_s?", "anew_at_s?", "heartbeat_every_s?", "heartbeat_at_s?"),
    *_int("failures"),
    *_real("failing_since_s?", "probe_at_s?", "disabled_at_s?"),
    *_text("disabled_reason?"),
    *_real("last_ok_s?"),
    *_text("last_detail?"),
    _index("project", "endpoint_id"),
)
_table(
    "outbox",
    _serial_key("seq"),
    _short("delivery_id", 64),
    _short("endpoint_id", 32),
    _short("notice_id", 64),
    _short("project", 32),
    _short("job_id?", 128),
    _short("rule?", 64),
    *_text("kind", "fingerprints", "listed", "payload", "content_type", "headers", "subject?"),
    *_text("state"),
    *_int("attempt"),
    *_real("next_at_s", "lease_until_s"),
    *_text("detail?"),
    *_real("created_s", "done_s?"),
    sa.UniqueConstraint("delivery_id"),
    sa.UniqueConstraint("endpoint_id", "notice_id"),
    _index("state", "next_at_s"),
    _index("endpoint_id", "state", "next_at_s"),
    _index("job_id", "rule", "endpoint_id", "seq"),
    _index("project", "seq"),
)
_table(
    "delivery_attempts",
    _serial_key("attempt_id"),
    _short("delivery_id", 64, sa.ForeignKey("outbox.delivery_id")),
    *_int("attempt"),
    *_real("at_s", "took_s"),
    *_int("status?"),
    *_text("detail"),
    _index("delivery_id", "attempt_id"),
)
