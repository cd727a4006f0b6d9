"""How the processes of a run's ranks ended, and what the job has ended as."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("exit_reported_s", sa.Double()))
    op.add_column("runs", sa.Column("num_exits", sa.Integer()))
    op.add_column("runs", sa.Column("ended_as", sa.Text()))
    op.add_column("runs", sa.Column("end_cause", sa.Text()))
    op.create_table(
        "rank_exits",
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("dp_rank", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("error_type", sa.Text()),
        sa.Column("message", sa.Text()),
        sa.Column("signal", sa.Integer()),
        sa.Column("exit_code", sa.Integer()),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"],
            ["runs.job_id", "runs.epoch"],
            name="fk_rank_exits_job_id_runs",
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", "rank", name="pk_rank_exits"),
    )


def downgrade() -> None:
    op.drop_table("rank_exits")
    for name in ("end_cause", "ended_as", "num_exits", "exit_reported_s"):
        op.drop_column("runs", name)


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
