"""What is remembered of a run's earlier windows, to see later that something has changed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    job_id = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")
    op.create_table(
        "histories",
        sa.Column("job_id", job_id, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("through_step", sa.BigInteger(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", name="pk_histories"),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"], ["runs.job_id", "runs.epoch"], name="fk_histories_runs"
        ),
    )


def downgrade() -> None:
    op.drop_table("histories")
