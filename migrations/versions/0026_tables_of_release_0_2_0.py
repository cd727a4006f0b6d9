"""How far consumers are behind, and whose pushes are refused; every receiver is encrypted.

Scores of other tools go.
"""

import sqlalchemy as sa
from alembic import op

from app.errors import StartUpFailed

revision = "0026"
down_revision = "0024"
branch_labels = None
depends_on = None

_JOB_ID = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")
_KEY = sa.String(32).with_variant(sa.String(32, collation="C"), "postgresql")
_SOURCE = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")


def upgrade() -> None:
    _refuse_plain_secrets(op.get_bind())
    op.add_column("shards", sa.Column("taken_s", sa.Text()))
    op.add_column("shards", sa.Column("as_of_s", sa.Double()))
    op.add_column("alert_groups", sa.Column("held_since_s", sa.Double()))
    op.add_column(
        "alert_told", sa.Column("flaps", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "refusals",
        sa.Column("job_id", _JOB_ID, primary_key=True),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("last_s", sa.Double(), nullable=False),
    )
    with op.batch_alter_table("endpoints") as batch:
        batch.drop_column("secrets")
        batch.alter_column("sealed", existing_type=sa.Text(), nullable=False)
    op.drop_table("score_reports")
    _drop_early_briefs()


def downgrade() -> None:
    op.create_table(
        "score_reports",
        sa.Column("report_id", _KEY, primary_key=True),
        sa.Column("job_id", _JOB_ID, sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("source", _SOURCE, nullable=False),
        sa.Column("received_s", sa.Double(), nullable=False),
        sa.Column("num_scores", sa.BigInteger(), nullable=False),
        sa.Column("num_reports", sa.BigInteger(), nullable=False),
        sa.Column("lacks", sa.Text(), nullable=False),
        sa.Column("scores", sa.LargeBinary(), nullable=False),
        sa.Index("ix_score_reports_job_id_received_s", "job_id", "received_s"),
        sa.Index("ix_score_reports_job_id_source_received_s", "job_id", "source", "received_s"),
    )
    with op.batch_alter_table("endpoints") as batch:
        batch.add_column(sa.Column("secrets", sa.Text(), nullable=False, server_default="{}"))
        batch.alter_column("sealed", existing_type=sa.Text(), nullable=True)
    op.drop_table("refusals")
    op.drop_column("alert_told", "flaps")
    op.drop_column("alert_groups", "held_since_s")
    op.drop_column("shards", "as_of_s")
    op.drop_column("shards", "taken_s")


def _drop_early_briefs() -> None:
    """Briefs of before 0.1.0, which lacked figures: a job's next window makes another."""
    briefs = sa.table("window_briefs", sa.column("brief", sa.Text()))
    names = ("num_steps", "step_s", "discrepancy", "ended_s", "clock_residual_ms", "num_findings")
    is_early = sa.or_(*(briefs.c.brief.not_like(f'%"{name}"%') for name in names))
    op.execute(sa.delete(briefs).where(is_early))


def _refuse_plain_secrets(conn: sa.Connection) -> None:
    """Releases before 0.1.0 stored secrets in plain; it encrypts them once it has a key."""
    sealed = sa.table("endpoints", sa.column("sealed")).c.sealed
    key = sa.table("service_keys", sa.column("key", sa.LargeBinary())).c.key
    is_plain = (sealed.is_(None), sa.func.substr(key, 1, 3) != b"v1.")
    counts = [
        conn.execute(sa.select(sa.func.count()).where(rows)).scalar_one() for rows in is_plain
    ]
    if any(counts):
        raise StartUpFailed(
            f"{sum(counts)} secrets in the database are not encrypted: set PACELINE_SECRET_KEY, "
            "and run paceline migrate of release 0.1.0 first"
        )
