"""Predicted fixes of jobs, and what they achieved."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_IS_LIVE = sa.text("state IN ('open', 'applied')")


def upgrade() -> None:
    op.create_table(
        "fixes",
        sa.Column("fix_id", _key(32), nullable=False),
        sa.Column("job_id", _key(128), nullable=False),
        sa.Column("fix", _key(64), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("tracked_by", sa.Text()),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("before_s", sa.Double(), nullable=False),
        sa.Column("step_s", sa.Double(), nullable=False),
        sa.Column("least_step_s", sa.Double(), nullable=False),
        sa.Column("most_step_s", sa.Double(), nullable=False),
        sa.Column("gpu_hours_per_day", sa.Double(), nullable=False),
        sa.Column("predicted_s", sa.Double(), nullable=False),
        sa.Column("renewed_s", sa.Double(), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
        sa.Column("sign", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("windows", sa.Text(), nullable=False),
        sa.Column("num_there", sa.BigInteger(), nullable=False),
        sa.Column("applied_epoch", sa.BigInteger()),
        sa.Column("applied_step", sa.BigInteger()),
        sa.Column("achieved", sa.Double()),
        sa.Column("note", sa.Text()),
        sa.Column("notice", sa.Text()),
        sa.PrimaryKeyConstraint("fix_id", name="pk_fixes"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_fixes_jobs"),
    )
    op.create_index(
        "ix_fixes_job_id_predicted_s_fix_id", "fixes", ["job_id", "predicted_s", "fix_id"]
    )
    op.create_index(
        "ix_fixes_live",
        "fixes",
        ["job_id", "fix"],
        unique=True,
        sqlite_where=_IS_LIVE,
        postgresql_where=_IS_LIVE,
    )


def downgrade() -> None:
    op.drop_table("fixes")


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
