"""Scores of ranks that other tools have measured."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "score_reports",
        sa.Column("report_id", _key(32), nullable=False),
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("source", _key(64), nullable=False),
        sa.Column("received_s", sa.Double(), nullable=False),
        sa.Column("num_scores", sa.BigInteger(), nullable=False),
        sa.Column("num_reports", sa.BigInteger(), nullable=False),
        sa.Column("lacks", sa.Text(), nullable=False),
        sa.Column("scores", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("report_id", name="pk_score_reports"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_score_reports_jobs"),
    )
    for columns in (("job_id", "received_s"), ("job_id", "source", "received_s")):
        op.create_index(f"ix_score_reports_{'_'.join(columns)}", "score_reports", [*columns])


def downgrade() -> None:
    op.drop_table("score_reports")


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
