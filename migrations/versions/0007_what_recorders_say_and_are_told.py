"""What recorders have dropped, what they are to record, and what consumers can read of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drops",
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("num_workers", sa.BigInteger(), nullable=False),
        sa.Column("worst", sa.Text(), nullable=False),
        sa.Column("by_rank", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", name="pk_drops"),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"], ["runs.job_id", "runs.epoch"], name="fk_drops_runs"
        ),
    )
    op.create_table(
        "recordings",
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("plans", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_recordings"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_recordings_jobs"),
    )
    op.add_column("hosts", sa.Column("placements", sa.LargeBinary()))
    # Null: a consumer of before that was asked, and which is still at work.
    op.add_column("consumers", sa.Column("knows", sa.Text()))


def downgrade() -> None:
    op.drop_column("consumers", "knows")
    op.drop_column("hosts", "placements")
    op.drop_table("recordings")
    op.drop_table("drops")


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
